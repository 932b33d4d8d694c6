"""The ledger: audit log, budgets, rate limits, flow labels and usage.

Every call and administrative change has a row in its organization's hash chain; budgets and rate
limits are cells that are updated in the same transaction. Ids and names are copied, so a deleted
server keeps its history. `writer` writes calls, `audit.admin_changes` administrative changes, and
`audit.verify_chain` verifies. `admission`, `budgets`, `audit.hash_chain`,
`audit.entry_encoding` and `writer.batch_plan` do no I/O.
"""
