"""Why a job is pending: shortfalls by node and limit, and the sentences that say so."""
