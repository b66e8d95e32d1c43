//! Smaller answers for clients that can read them.

use crate::http::{Next, Request, Response};

/// Bodies below this size are not worth the work.
const LEAST_BYTES: usize = 860;

/// Middleware that compresses answers with gzip or brotli, as the client accepts.
pub async fn compression_middleware(request: Request, next: Next) -> Response {
    let accepted = request.header("accept-encoding").unwrap_or_default().to_owned();
    let response = next.run(request).await;
    if response.body().len() < LEAST_BYTES || response.header("content-encoding").is_some() {
        return response;
    }
    if accepted.contains("br") {
        return response.encoded("br", brotli(response.body()));
    }
    if accepted.contains("gzip") {
        return response.encoded("gzip", gzip(response.body()));
    }
    response
}
