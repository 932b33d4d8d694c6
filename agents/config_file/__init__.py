"""An organization's configuration as a file: exported without secrets, applied declaratively.

`read_config` reads the file, `plan_changes` compares it with the database, `apply_config` applies
the plan in one transaction, `export_config` writes the file. Applying is idempotent.
"""
