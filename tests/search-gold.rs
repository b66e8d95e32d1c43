//! Questions about the files in `tests/search-corpus`, each with the file that answers it. Every
//! search engine and every dialect with a search must find these files.

/// Pairs of a question and the path of the file that answers it.
pub(crate) const GOLD: [(&str, &str); 24] = [
    ("authentication middleware", "src/http/auth.rs"),
    ("where are bearer tokens checked", "src/http/auth.rs"),
    ("gzip compress responses", "src/http/compress.rs"),
    ("retry with exponential backoff", "src/jobs/retry.py"),
    ("schedule periodic tasks", "src/jobs/retry.py"),
    ("shopping cart total price", "web/cart/CartSummary.tsx"),
    ("bulk discount", "web/cart/CartSummary.tsx"),
    ("rate limiting", "cmd/proxy/limiter.go"),
    ("token bucket", "cmd/proxy/limiter.go"),
    ("too many requests", "cmd/proxy/limiter.go"),
    ("look up a user by email address", "store/java/UserRepository.java"),
    ("remove inactive users", "store/java/UserRepository.java"),
    ("bytes between a writer and a reader", "native/ring.c"),
    ("ring_push", "native/ring.c"),
    ("upload encrypted database backup", "scripts/backup.sh"),
    ("invoices table", "db/schema.sql"),
    ("compute sales tax", "billing/invoice.rb"),
    ("parse comma separated values", "import/CsvReader.cs"),
    ("evict least recently used cache entry", "cache/lru.js"),
    ("evictOldest", "cache/lru.js"),
    ("tls certificate path setting", "config/server.toml"),
    ("how to roll back a release", "docs/deployment.md"),
    ("report a security vulnerability", "docs/security.md"),
    ("test that an expired session is refused", "tests/auth_test.py"),
];
