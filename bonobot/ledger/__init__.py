"""The ledger: what was asked, decided, done and spent, in rows that prove themselves.

Every call and every administrative change leaves a row in its organization's hash chain; budgets
and rate limits are cells beside it, moved in the same transaction. Ids and names are copied, so a
deleted server keeps its history. `writer` writes for calls, `audit.admin_changes` for
administration, `audit.verify_chain` checks; `admission_rules`, `budgets`, `audit.hash_chain`,
`audit.entry_encoding` and `writer.batch_plan` decide and do no I/O.
"""
