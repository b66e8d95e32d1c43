//! Messages as texts of a WebSocket.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Request};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use toolgate_contract::Hold;

use super::http::{place, said_always};
use super::talk::{Talk, until};
use crate::wire::Hears;
use crate::world::World;

/// Opens the socket at `url` (`ws:` or `wss:`) and speaks over it.
pub(crate) async fn open(
    world: Arc<dyn World>,
    url: &str,
    private_network: bool,
    headers: &BTreeMap<String, String>,
    bytes_max: usize,
    hears: Arc<dyn Hears>,
) -> Result<Talk, String> {
    // It begins as a request over HTTP.
    let plain = url.replacen("ws", "http", 1);
    let (at, uri) = place(&plain, private_network)?;
    let stream = world.dial(&at).await?;
    let mut request = Request::new(());
    *request.uri_mut() = url.parse().map_err(|err| format!("`{url}` is no URL: {err}"))?;
    let own = [
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-version", "13".to_owned()),
        ("sec-websocket-key", generate_key()),
        ("sec-websocket-protocol", "mcp".to_owned()),
    ];
    for (name, value) in own {
        let value = HeaderValue::try_from(value).map_err(|err| err.to_string())?;
        request.headers_mut().insert(name, value);
    }
    request.headers_mut().extend(said_always(headers, &uri)?);
    let config = WebSocketConfig::default()
        .max_message_size(Some(bytes_max))
        .max_frame_size(Some(bytes_max));
    let shaken = client_async_with_config(request, stream, Some(config)).await;
    let (socket, _) = shaken.map_err(|err| format!("it opens no WebSocket: {err}"))?;
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
