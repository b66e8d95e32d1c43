//! Stores large files of a fleet in a bucket of S3, or of a service with the same protocol.
//!
//! A file consists of several objects of up to 16 MiB, so that a server never has more of the file
//! in memory, and needs no multipart uploads. `rusty-s3` signs the URL of each request (AWS
//! Signature Version 4), and our HTTP client sends the request.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::iter;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use jiff::Timestamp;
use rusty_s3::{Bucket, Credentials, Method, UrlStyle, signing};
use tokio::time::{sleep, timeout};
use toolgate_contract::BoxFuture;
use toolgate_host::LargeFileStore;
use toolgate_net::{HttpClient, HttpUrl, spawn_blocking};
use toolgate_world::fetch::open_http_client;

/// Maximum size of one object in the bucket, in bytes.
const OBJECT_BYTES_MAX: usize = 16 << 20;
/// Time limit of one request to the bucket.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which the signature of a request is valid. Clocks may differ by less than this time.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(900);
/// Maximum number of attempts of a request that the storage service does not answer, or cannot
/// serve at the moment.
const TRIES_MAX: u32 = 3;
/// Pause before the second attempt of a request. Later pauses are longer.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A bucket, and the prefix of the names of all objects in it.
#[derive(Debug)]
pub(crate) struct BucketLocation {
    bucket: Bucket,
    /// Prefix of the names of all objects: empty, or a text that ends with a slash.
    prefix: String,
}

impl BucketLocation {
    /// Parses `place`, which is `s3://BUCKET` or `s3://BUCKET/PREFIX`. `endpoint` is the URL of the
    /// service; the default is the URL of AWS.
    ///
    /// # Errors
    /// The bucket, the prefix, the region or the endpoint is invalid.
    pub(crate) fn parse(place: &str, endpoint: Option<&str>, region: &str) -> Result<Self, String> {
        let path = place.strip_prefix("s3://").unwrap_or(place).trim_end_matches('/');
        let is_plain = |text: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !text.is_empty() && text != "." && text != ".." && text.chars().all(is_allowed)
        };
        if !path.split('/').all(is_plain) {
            return Err(format!(
                "is `{place}`; write `s3://BUCKET` or `s3://BUCKET/PREFIX`, with letters, digits, \
                 `.`, `_` and `-` only"
            ));
        }
        if !is_plain(region) {
            return Err(format!("needs a valid region, which `{region}` is not"));
        }
        let aws = || format!("https://s3.{region}.amazonaws.com");
        let endpoint = endpoint.map_or_else(aws, str::to_owned);
        let (name, prefix) = match path.split_once('/') {
            Some((name, prefix)) => (name, format!("{prefix}/")),
            None => (path, String::new()),
        };
        let bucket = open_bucket(&endpoint, name, region)
            .map_err(|why| format!("needs a valid endpoint, which `{endpoint}` is not: {why}"))?;
        Ok(Self { bucket, prefix })
    }
}

/// Creates the description of the bucket `name` of the service at `endpoint`. Fails if the endpoint
/// is not a valid URL.
fn open_bucket(endpoint: &str, name: &str, region: &str) -> Result<Bucket, Box<dyn Error>> {
    // `Bucket` would ignore a query, a user name and a password.
    let endpoint = HttpUrl::parse_below(endpoint, "/")?.to_string();
    let (name, region) = (name.to_owned(), region.to_owned());
    Ok(Bucket::new(endpoint.parse()?, UrlStyle::Path, name, region)?)
}

/// Client for a bucket in which a fleet stores large files.
pub(crate) struct FileBucketClient {
    client: HttpClient,
    place: BucketLocation,
    key: Credentials,
}

impl fmt::Debug for FileBucketClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBucketClient").field("place", &self.place).finish_non_exhaustive()
    }
}

impl FileBucketClient {
    /// Creates a client for the bucket at `place` with the access key `key`. Does not connect yet.
    pub(crate) fn new(place: BucketLocation, key: Credentials) -> Self {
        Self { client: open_http_client(), place, key }
    }

    /// Returns the name of the object with this `number` that contains a piece of the file `name`.
    fn object_name(&self, name: &str, number: u64) -> String {
        format!("{}{name}/{number}", self.place.prefix)
    }

    /// Returns the host and the port of the storage service.
    fn authority(&self) -> &str {
        self.place.bucket.base_url().authority()
    }

    /// Sends a request about `object` and returns the status and body of the answer. Repeats the
    /// request up to two times if the service does not answer or has a temporary failure, and then
    /// fails.
    async fn request(
        &self,
        method: Method,
        object: &str,
        body: &Bytes,
    ) -> io::Result<(StatusCode, Bytes)> {
        let mut tries = 1;
        loop {
            let why = match self.send(method, object, body.clone()).await {
                Ok((status, _)) if is_transient(status) => {
                    format!("{} answered {status}", self.authority())
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
        method: Method,
        object: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = self.sign(method, object, body, &Timestamp::now())?;
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
            Err(format!("{} did not answer within {seconds} s", self.authority()))
        })
    }

    /// Creates a request about `object` with this `body`, and signs its URL for the time `now`.
    fn sign(
        &self,
        method: Method,
        object: &str,
        body: Bytes,
        now: &Timestamp,
    ) -> Result<Request<Full<Bytes>>, String> {
        let (bucket, key) = (&self.place.bucket, &self.key);
        let url = signing::sign(
            now,
            method,
            bucket.object_url(object),
            key.key(),
            key.secret(),
            key.token(),
            bucket.region(),
            SIGNATURE_LIFETIME.as_secs(),
            iter::empty(),
            iter::empty(),
        );
        let request = Request::builder().method(method.to_str()).uri(url.as_str());
        request.body(Full::new(body)).map_err(|err| err.to_string())
    }

    /// Returns the error for a request that the service refused, with the error code in the
    /// answer's `body`.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> io::Error {
        let code = error_code(body);
        let code = if code.is_empty() { code } else { format!(" ({code})") };
        io::Error::other(format!("{} answered {status}{code}", self.authority()))
    }
}

impl LargeFileStore for FileBucketClient {
    fn put<'a>(&'a self, name: &'a str, content: Arc<File>) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let bytes = content.metadata()?.len();
            for (number, at) in objects_of(bytes) {
                let content = content.clone();
                let piece = spawn_blocking(move || read_piece(&content, at, bytes)).await;
                let piece = piece.map_err(io::Error::other).flatten()?;
                let object = self.object_name(name, number);
                let (status, body) = self.request(Method::Put, &object, &piece).await?;
                if !status.is_success() {
                    return Err(self.refusal(status, &body));
                }
            }
            Ok(())
        })
    }

    fn fetch<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<Option<File>>> {
        Box::pin(async move {
            let file = Arc::new(tempfile::tempfile()?);
            for (number, at) in objects_of(bytes) {
                let object = self.object_name(name, number);
                let (status, body) = self.request(Method::Get, &object, &Bytes::new()).await?;
                if is_missing_object(status, &body) {
                    return Ok(None);
                }
                if !status.is_success() {
                    return Err(self.refusal(status, &body));
                }
                if body.len() as u64 != (bytes - at).min(OBJECT_BYTES_MAX as u64) {
                    let why = format!("`{object}` has another length than it was stored with");
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
                let object = self.object_name(name, number);
                let (status, body) = self.request(Method::Delete, &object, &Bytes::new()).await?;
                if !status.is_success() && !is_missing_object(status, &body) {
                    return Err(self.refusal(status, &body));
                }
            }
            Ok(())
        })
    }
}

/// Returns true if a request that was answered with `status` may succeed later.
fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Returns the number of each object of a file of `bytes` bytes, with the offset in the file at
/// which the object begins.
fn objects_of(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0_u64..).zip((0..bytes).step_by(OBJECT_BYTES_MAX))
}

/// Reads the part of `file` that one object contains: from the offset `at`, at most 16 MiB. `bytes`
/// is the size of the file. Fails if the file is shorter.
fn read_piece(file: &File, at: u64, bytes: u64) -> io::Result<Bytes> {
    let len = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(OBJECT_BYTES_MAX);
    let mut piece = vec![0; len];
    file.read_exact_at(&mut piece, at)?;
    Ok(piece.into())
}

/// Returns true if the service answered that the object is missing. Returns false if the bucket is
/// missing.
fn is_missing_object(status: StatusCode, body: &[u8]) -> bool {
    status == StatusCode::NOT_FOUND && error_code(body) != "NoSuchBucket"
}

/// Returns the error code in `body`, an answer of the service, such as `NoSuchKey`. Returns an
/// empty text if there is no code.
fn error_code(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map(|(code, _)| code).unwrap_or_default();
    code.chars().filter(char::is_ascii_alphanumeric).take(60).collect()
}

#[cfg(test)]
mod tests;
