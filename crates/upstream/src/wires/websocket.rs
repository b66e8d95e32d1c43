//! Messages as texts of a WebSocket.

use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use toolgate_contract::Hold;

use super::site::{Site, place};
use super::talk::{Talk, until};
use crate::upstream::told;
use crate::wire::{Hears, Trouble};
use crate::world::Bytes;

/// Opens the socket at `site` (`ws:` or `wss:`) and speaks over it.
pub(crate) async fn open(site: Site, hears: Arc<dyn Hears>) -> Result<Talk, String> {
    let told = |trouble: Trouble| told(&trouble);
    let token = site.token().await.map_err(told)?;
    let socket = match shaken(&site, token.as_ref()).await {
        Err(Error::Http(said)) if site.is_refused(said.status(), said.headers()) => {
            site.refused(token.as_ref(), said.status(), said.headers()).await.map_err(told)?;
            let token = site.token().await.map_err(told)?;
            shaken(&site, token.as_ref()).await
        }
        shaken => shaken,
    };
    let socket = socket.map_err(|err| format!("it opens no WebSocket: {err}"))?;
    let (mut sink, mut stream) = socket.split();
    let (talk, mut messages, ends) = Talk::begin(hears, Hold::nothing());
    let ear = talk.ear();
    let writing = async move {
        while let Some(message) = messages.recv().await {
            let text = String::from_utf8_lossy(&message).into_owned();
            if let Err(err) = sink.send(Message::text(text)).await {
                return ear.shared.end(format!("it does not read: {err}"));
            }
        }
    };
    tokio::spawn(until(ends.clone(), writing));
    let ear = talk.ear();
    let reading = async move {
        let why = loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => ear.taken(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => ear.taken(&bytes),
                Some(Ok(Message::Close(_))) | None => break "it closed the socket".to_owned(),
                Some(Ok(_)) => {}
                Some(Err(err)) => break err.to_string(),
            }
        };
        ear.shared.end(why);
    };
    tokio::spawn(until(ends, reading));
    Ok(talk)
}

/// The socket, whose request says `token`.
async fn shaken(
    site: &Site,
    token: Option<&HeaderValue>,
) -> Result<WebSocketStream<Box<dyn Bytes>>, Error> {
    let away = |why: String| Error::Io(std::io::Error::other(why));
    // It begins as a request over HTTP.
    let plain = site.url.replacen("ws", "http", 1);
    let (at, uri) = place(&plain, site.private_network).map_err(away)?;
    let stream = site.world.dial(&at).await.map_err(away)?;
    let mut request = Request::new(());
    *request.uri_mut() = site.url.parse()?;
    let own = [
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-version", "13".to_owned()),
        ("sec-websocket-key", generate_key()),
        ("sec-websocket-protocol", "mcp".to_owned()),
    ];
    for (name, value) in own {
        let value = HeaderValue::try_from(value).map_err(|err| away(err.to_string()))?;
        request.headers_mut().insert(name, value);
    }
    request.headers_mut().extend(site.said_always(&uri).map_err(away)?);
    request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token.clone())));
    let config = WebSocketConfig::default()
        .max_message_size(Some(site.bytes_max))
        .max_frame_size(Some(site.bytes_max));
    let (socket, _) = client_async_with_config(request, stream, Some(config)).await?;
    Ok(socket)
}
