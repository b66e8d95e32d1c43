//! HTTP+SSE, as 2024-11-05 has it: what comes, comes by one stream; what is said is posted.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use toolgate_contract::Hold;

use super::events::Events;
use super::pool::Pool;
use super::site::Site;
use super::talk::{Ear, Talk, until};
use crate::upstream::told;
use crate::wire::{Hears, Trouble};

/// Opens the stream at `site` and speaks over it.
pub(crate) async fn open(site: Site, hears: Arc<dyn Hears>) -> Result<Talk, String> {
    let (at, uri) = site.place()?;
    let headers = site.said_always(&uri)?;
    let pool = Pool::new(site.world.clone(), at);
    let bytes_max = site.bytes_max;
    let request = move |method: &str, path: Uri, body: Bytes| {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.parse().unwrap_or_default();
        *request.uri_mut() = path;
        request.headers_mut().extend(headers.iter().cloned());
        request
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(|err| format!("`{}` is no URL: {err}", site.url))?;
    let open = || {
        let mut open = request("GET", path.clone(), Bytes::new());
        open.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        Ok(open)
    };
    let opened = site.send(&pool, open).await;
    let (mut response, _) = opened.map_err(|trouble| told(&trouble))?;
    if !response.status().is_success() {
        return Err(format!("it answered {}", response.status()));
    }
    let mut events = Events::default();
    let endpoint = endpoint(&mut response, &mut events, bytes_max).await?;
    let endpoint = beside(&uri, &endpoint)?;
    let (talk, messages, ends) = Talk::begin(hears, Hold::nothing());
    let ear = talk.ear();
    let reading = async move {
        let why = read(response, events, bytes_max, &ear).await;
        ear.shared.end(why);
    };
    tokio::spawn(until(ends.clone(), reading));
    let post = move |body| {
        let mut post = request("POST", endpoint.clone(), body);
        let json = HeaderValue::from_static("application/json");
        post.headers_mut().insert(CONTENT_TYPE, json);
        post
    };
    tokio::spawn(until(ends, posted(site, pool, messages, post, talk.ear())));
    Ok(talk)
}

/// Where messages are posted, which the first event says.
async fn endpoint(
    response: &mut Response<Incoming>,
    events: &mut Events,
    bytes_max: usize,
) -> Result<String, String> {
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|err| err.to_string())?;
        let Ok(piece) = frame.into_data() else { continue };
        let first = events.take(&piece, bytes_max).into_iter().find(|it| it.kind == "endpoint");
        if let Some(event) = first {
            return Ok(event.data);
        }
    }
    Err("the stream ended before it said where to post".to_owned())
}

/// The path of `endpoint`, which must be where the stream is: messages go nowhere else.
fn beside(stream: &Uri, endpoint: &str) -> Result<Uri, String> {
    let odd = |why: String| format!("it says to post to `{endpoint}`: {why}");
    let uri: Uri = endpoint.trim().parse().map_err(|err| odd(format!("{err}")))?;
    if let Some(authority) = uri.authority()
        && (Some(authority) != stream.authority() || uri.scheme() != stream.scheme())
    {
        return Err(odd("which is another server".to_owned()));
    }
    let path = uri.path_and_query().map(|path| path.as_str()).unwrap_or("/");
    path.parse().map_err(|err| odd(format!("{err}")))
}

async fn read(
    mut response: Response<Incoming>,
    mut events: Events,
    bytes_max: usize,
    ear: &Ear,
) -> String {
    while let Some(frame) = response.body_mut().frame().await {
        let piece = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(piece)) => piece,
            Ok(Err(_)) => continue,
            Err(err) => return err.to_string(),
        };
        for event in events.take(&piece, bytes_max) {
            match &event.cut {
                Some(cut) => ear.too_long(cut, bytes_max),
                None => ear.taken(event.data.as_bytes()),
            }
        }
    }
    "the stream ended".to_owned()
}

async fn posted(
    site: Site,
    pool: Arc<Pool>,
    mut messages: mpsc::Receiver<Bytes>,
    post: impl Fn(Bytes) -> Request<Full<Bytes>>,
    ear: Ear,
) {
    while let Some(message) = messages.recv().await {
        let sent = async {
            let (response, giving) = site.send(&pool, || Ok(post(message.clone()))).await?;
            let status = response.status();
            let _ = response.into_body().collect().await;
            giving.back();
            match status.is_success() {
                true => Ok(()),
                false => Err(Trouble::NotSent(format!("it answered {status}"))),
            }
        };
        if let Err(trouble) = sent.await {
            return ear.shared.end(told(&trouble));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_posted_to_the_server_of_the_stream_and_no_other() {
        let stream: Uri = "http://a.example:1/sse".parse().expect("a URL");
        let path = |endpoint| beside(&stream, endpoint).map(|uri| uri.to_string());
        assert_eq!(path("/messages?id=1"), Ok("/messages?id=1".to_owned()));
        assert_eq!(path("http://a.example:1/m"), Ok("/m".to_owned()));
        for other in ["http://b.example/m", "https://a.example:1/m", "http://a.example:2/m"] {
            assert!(path(other).is_err(), "{other}");
        }
    }
}
