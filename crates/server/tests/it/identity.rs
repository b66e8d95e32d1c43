//! Who calls over HTTP, and how nobody else reads what they say.

mod provider;
mod keys;
mod tokens;
mod scopes;
mod tls;
