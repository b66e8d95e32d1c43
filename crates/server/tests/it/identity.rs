//! Authentication over HTTP, and TLS.

mod provider;
mod keys;
mod tokens;
mod scopes;
mod tls;
