"""The logos of the services that presets of the catalog connect to.

The symbols are in `bonobot/static/bonobot/presets/logos.svg`, next to their license. Other
presets have an icon of their kind. Servers have no logo: their address can be changed.
"""

LOGOS = {
    "asana": "asana",
    "atlassian": "atlassian",
    "bigquery": "googlebigquery",
    "brave-search": "brave",
    "chrome-devtools": "googlechrome",
    "clickhouse": "clickhouse",
    "cloudflare": "cloudflare",
    "cloudflare-bindings": "cloudflare",
    "cloudflare-documentation": "cloudflare",
    "cloudflare-observability": "cloudflare",
    "github": "github",
    "gitlab": "gitlab",
    "google-compute-engine": "googlecloud",
    "google-kubernetes-engine": "googlecloud",
    "grafana": "grafana",
    "hugging-face": "huggingface",
    "kubernetes": "kubernetes",
    "linear": "linear",
    "mongodb": "mongodb",
    "neo4j": "neo4j",
    "neon": "neon",
    "notion": "notion",
    "perplexity": "perplexity",
    "postgresql": "postgresql",
    "qdrant": "qdrant",
    "redis": "redis",
    "sentry": "sentry",
    "sentry-self-hosted": "sentry",
    "sqlite": "sqlite",
    "stripe": "stripe",
    "supabase": "supabase",
    "vercel": "vercel",
    "vertex-ai-search": "googlecloud",
}
