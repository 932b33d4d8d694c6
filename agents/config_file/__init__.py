"""An organization's configuration as a file: exported without secrets, applied declaratively (E1).

`documents` reads the file, `planning` compares it with what is there, `applying` makes it so in one
transaction, `exporting` writes it. The file applied again changes nothing.
"""
