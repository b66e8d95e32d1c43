//! Stores large files of a fleet in a bucket of S3, or of a service with the same protocol.
//!
//! A file is several objects of up to 16 MiB, so that a server never has more of the file in memory,
//! and no upload has parts. Requests are signed with AWS Signature Version 4.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use jiff::Timestamp;
use ring::{digest, hmac};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use toolgate_contract::BoxFuture;
use toolgate_host::LargeFileStore;
use toolgate_net::{HttpClient, HttpUrl};
use toolgate_world::fetch::open_http_client;

/// Largest object, in bytes.
const OBJECT_BYTES_MAX: usize = 16 << 20;
/// Time limit of one request to the bucket.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of tries of a request that the service does not answer or cannot fulfil now.
const TRIES_MAX: u32 = 3;
/// Pause before the second try of a request. Later pauses are longer.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Access key of a bucket. `Debug` does not print it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct BucketAccessKey {
    /// Id of the access key.
    pub(crate) id: String,
    /// Secret of the access key.
    pub(crate) secret: String,
    /// Session token of a temporary access key.
    pub(crate) token: Option<String>,
}

impl fmt::Debug for BucketAccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_empty() { "none" } else { "[redacted]" })
    }
}

/// A bucket in which large files are stored.
pub(crate) struct FileBucket {
    client: HttpClient,
    /// URL of the bucket, with the beginning of all object names.
    url: HttpUrl,
    region: String,
    key: BucketAccessKey,
}

impl fmt::Debug for FileBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBucket").field("url", &self.url.to_string()).finish_non_exhaustive()
    }
}

/// Returns the URL of the bucket that `place` (`s3://BUCKET` or `s3://BUCKET/PREFIX`) names.
/// `endpoint` is the URL of the service; by default, it is that of AWS.
///
/// # Errors
/// The bucket, the prefix, the region or the endpoint is invalid.
pub(crate) fn bucket_url(
    place: &str,
    endpoint: Option<&str>,
    region: &str,
) -> Result<HttpUrl, String> {
    let path = place.strip_prefix("s3://").unwrap_or(place).trim_end_matches('/');
    let is_plain = |text: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !text.is_empty() && text != "." && text != ".." && text.chars().all(is_allowed)
    };
    if !path.split('/').all(is_plain) {
        return Err(format!(
            "is `{place}`; write `s3://BUCKET` or `s3://BUCKET/PREFIX`, with letters, digits, `.`, \
             `_` and `-` only"
        ));
    }
    if !is_plain(region) {
        return Err(format!("needs a valid region, which `{region}` is not"));
    }
    let aws = || format!("https://s3.{region}.amazonaws.com");
    let endpoint = endpoint.map_or_else(aws, str::to_owned);
    HttpUrl::parse_below(&endpoint, &format!("/{path}"))
        .map_err(|err| format!("needs a valid endpoint, which `{endpoint}` is not: {err}"))
}

impl FileBucket {
    /// Creates the access to the bucket at `url`. Does not connect yet.
    pub(crate) fn new(url: HttpUrl, region: &str, key: BucketAccessKey) -> Self {
        Self { client: open_http_client(), url, region: region.to_owned(), key }
    }

    fn object_url(&self, name: &str, number: u64) -> io::Result<HttpUrl> {
        let path = format!("/{name}/{number}");
        HttpUrl::parse_below(&self.url.to_string(), &path).map_err(io::Error::other)
    }

    /// Sends a request to the bucket, again if the service does not answer or has a failure.
    async fn request(
        &self,
        method: &Method,
        url: &HttpUrl,
        body: &Bytes,
    ) -> io::Result<(StatusCode, Bytes)> {
        let mut tries = 1;
        loop {
            let why = match self.send(method, url, body.clone()).await {
                Ok((status, _)) if is_transient(status) => {
                    format!("{} answered {status}", url.authority())
                }
                Ok(answer) => return Ok(answer),
                Err(why) => why,
            };
            if tries == TRIES_MAX {
                return Err(io::Error::other(why));
            }
            sleep(RETRY_PAUSE * tries).await;
            tries += 1;
        }
    }

    async fn send(
        &self,
        method: &Method,
        url: &HttpUrl,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = self.sign(method, url, body, Timestamp::now())?;
        let exchange = async {
            let response =
                self.client.send(request).await.map_err(|failure| failure.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), OBJECT_BYTES_MAX).collect().await;
            let body = body.map_err(|err| err.to_string())?;
            Ok::<_, String>((status, body.to_bytes()))
        };
        let answered = timeout(REQUEST_TIMEOUT, exchange).await;
        answered.unwrap_or_else(|_| {
            let seconds = REQUEST_TIMEOUT.as_secs();
            Err(format!("{} did not answer within {seconds} s", url.authority()))
        })
    }

    /// Returns a request with this `body`, signed at the time `now`.
    fn sign(
        &self,
        method: &Method,
        url: &HttpUrl,
        body: Bytes,
        now: Timestamp,
    ) -> Result<Request<Full<Bytes>>, String> {
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let hash = sha256(&body);
        // In the order of their names, as the signature demands.
        let mut headers = vec![
            ("host", url.authority()),
            ("x-amz-content-sha256", hash.as_str()),
            ("x-amz-date", time.as_str()),
        ];
        if let Some(token) = &self.key.token {
            headers.push(("x-amz-security-token", token.as_str()));
        }
        let authorization = self.authorization(method, url.path(), &headers, &hash, &time);
        let mut authorization = HeaderValue::try_from(authorization)
            .map_err(|_| "the access key contains invalid characters".to_owned())?;
        authorization.set_sensitive(true);
        let mut request = Request::builder()
            .method(method.clone())
            .uri(url.uri().clone())
            .header(AUTHORIZATION, authorization);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.body(Full::new(body)).map_err(|err| err.to_string())
    }

    /// Returns the value of the `Authorization` header for a request at `time` with these
    /// `headers`. `hash` is the digest of its body.
    fn authorization(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        hash: &str,
        time: &str,
    ) -> String {
        let lines = headers.iter().map(|(name, value)| format!("{name}:{value}\n"));
        let lines = lines.collect::<Vec<_>>().concat();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let canonical = format!("{method}\n{path}\n\n{lines}\n{names}\n{hash}");
        let day = time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let signed = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let mut key = format!("AWS4{}", self.key.secret).into_bytes();
        for part in [day, self.region.as_str(), "s3", "aws4_request"] {
            key = hmac_sha256(&key, part);
        }
        let signature = HEXLOWER.encode(&hmac_sha256(&key, &signed));
        let id = &self.key.id;
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={names},Signature={signature}"
        )
    }
}

impl LargeFileStore for FileBucket {
    fn put<'a>(&'a self, name: &'a str, content: Arc<File>) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let bytes = content.metadata()?.len();
            for (number, at) in objects_of(bytes) {
                let content = content.clone();
                let piece = spawn_blocking(move || read_piece(&content, at, bytes)).await;
                let piece = piece.map_err(io::Error::other).flatten()?;
                let url = self.object_url(name, number)?;
                let (status, body) = self.request(&Method::PUT, &url, &piece).await?;
                if !status.is_success() {
                    return Err(refusal(&url, status, &body));
                }
            }
            Ok(())
        })
    }

    fn fetch<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<Option<File>>> {
        Box::pin(async move {
            let file = Arc::new(tempfile::tempfile()?);
            for (number, at) in objects_of(bytes) {
                let url = self.object_url(name, number)?;
                let (status, body) = self.request(&Method::GET, &url, &Bytes::new()).await?;
                if status == StatusCode::NOT_FOUND {
                    return Ok(None);
                }
                if !status.is_success() {
                    return Err(refusal(&url, status, &body));
                }
                if body.len() as u64 != (bytes - at).min(OBJECT_BYTES_MAX as u64) {
                    let why = format!("{} has another length than it was stored with", url.path());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                let file = file.clone();
                let written = spawn_blocking(move || file.write_all_at(&body, at)).await;
                written.map_err(io::Error::other).flatten()?;
            }
            file.try_clone().map(Some)
        })
    }

    fn delete<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            for (number, _) in objects_of(bytes) {
                let url = self.object_url(name, number)?;
                let (status, body) = self.request(&Method::DELETE, &url, &Bytes::new()).await?;
                if !status.is_success() && status != StatusCode::NOT_FOUND {
                    return Err(refusal(&url, status, &body));
                }
            }
            Ok(())
        })
    }
}

/// Returns true if the same request may succeed later.
fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Returns the numbers of the objects of a file with `bytes` bytes, and their first bytes.
fn objects_of(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0_u64..).zip((0..bytes).step_by(OBJECT_BYTES_MAX))
}

/// Reads the object from the byte `at` on, of a file with `bytes` bytes.
fn read_piece(file: &File, at: u64, bytes: u64) -> io::Result<Bytes> {
    let len = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(OBJECT_BYTES_MAX);
    let mut piece = vec![0; len];
    file.read_exact_at(&mut piece, at)?;
    Ok(piece.into())
}

/// Returns the error for a request that the bucket refused, with the code in its answer.
fn refusal(url: &HttpUrl, status: StatusCode, body: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map(|(code, _)| code).unwrap_or_default();
    let code: String = code.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
    let code = if code.is_empty() { code } else { format!(" ({code})") };
    io::Error::other(format!("{} answered {status}{code}", url.authority()))
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hmac_sha256(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests;
