//! Tests of authentication over HTTP, and of TLS.

mod provider;
mod keys;
mod tokens;
mod scopes;
mod tls;
