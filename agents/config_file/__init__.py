"""An organization's configuration as a file: exported without secrets, applied declaratively.

`read_config` reads the file, `plan_changes` compares it with what is stored, `apply_config` carries
the plan out in one transaction, `export_config` writes the file. Applied again, it changes nothing.
"""
