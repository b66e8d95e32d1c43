//! WebSocket transport: one message per text frame.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use tokio_tungstenite::tungstenite::error::{ProtocolError, SubProtocolError};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use toolgate_contract::WatchGuard;

use super::adaptive_spin::AnswerSpin;
use super::conversation::{UpstreamConversation, run_until};
use super::site::UpstreamSite;
use crate::address::{http_url, parse_address};
use crate::transport::describe_failure;
use crate::transport::{MessageReceiver, RequestFailure};
use crate::world::ByteStream;

/// Longest wait for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the WebSocket at `site` (`ws:` or `wss:`) and starts a conversation over it.
pub(crate) async fn open(
    site: UpstreamSite,
    hears: Arc<dyn MessageReceiver>,
) -> Result<UpstreamConversation, String> {
    let told = |trouble: RequestFailure| describe_failure(&trouble);
    let token = site.token().await.map_err(told)?;
    let socket = match connect(&site, token.as_ref()).await {
        Err(Error::Http(said)) if site.is_refused(said.status(), said.headers()) => {
            site.replace_refused_token(token.as_ref(), said.status(), said.headers())
                .await
                .map_err(told)?;
            let token = site.token().await.map_err(told)?;
            connect(&site, token.as_ref()).await
        }
        agreed => agreed,
    };
    let socket = socket.map_err(|err| format!("it opens no WebSocket: {err}"))?;
    let (mut sink, mut stream) = socket.split();
    let (talk, mut messages, ends) =
        UpstreamConversation::start(hears, WatchGuard::none(), AnswerSpin::new());
    let ear = talk.incoming();
    let over = ends.clone();
    tokio::spawn(async move {
        let writing = async {
            while let Some(message) = messages.recv().await {
                let text = String::from_utf8_lossy(&message).into_owned();
                if let Err(err) = sink.send(Message::text(text)).await {
                    return ear.shared.end(format!("it does not read: {err}"));
                }
            }
        };
        run_until(over, writing).await;
        // Some servers report a connection without a closing handshake as a failure.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.close()).await;
    });
    let ear = talk.incoming();
    let reading = async move {
        let why = loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => ear.handle(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => ear.handle(&bytes),
                Some(Ok(Message::Close(_))) | None => break "it closed the socket".to_owned(),
                Some(Ok(_)) => {}
                Some(Err(err)) => break err.to_string(),
            }
        };
        ear.shared.end(why);
    };
    tokio::spawn(run_until(ends, reading));
    Ok(talk)
}

/// Connects with the subprotocol `mcp`, or without one if the server names none.
async fn connect(
    site: &UpstreamSite,
    token: Option<&HeaderValue>,
) -> Result<WebSocketStream<Box<dyn ByteStream>>, Error> {
    let none = ProtocolError::SecWebSocketSubProtocolError(SubProtocolError::NoSubProtocol);
    match open_socket(site, token, Some("mcp")).await {
        Err(Error::Protocol(why)) if why == none => open_socket(site, token, None).await,
        shaken => shaken,
    }
}

async fn open_socket(
    site: &UpstreamSite,
    token: Option<&HeaderValue>,
    speaks: Option<&str>,
) -> Result<WebSocketStream<Box<dyn ByteStream>>, Error> {
    let away = |why: String| Error::Io(std::io::Error::other(why));
    // The handshake is an HTTP request.
    let (at, uri) = parse_address(&http_url(&site.url), site.private_network).map_err(away)?;
    let stream = site.world.dial(&at).await.map_err(away)?;
    let mut request = Request::new(());
    *request.uri_mut() = site.url.trim().parse()?;
    let speaks = speaks.map(|it| ("sec-websocket-protocol", it.to_owned()));
    let own = [
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-version", "13".to_owned()),
        ("sec-websocket-key", generate_key()),
    ];
    for (name, value) in own.into_iter().chain(speaks) {
        let value = HeaderValue::try_from(value).map_err(|err| away(err.to_string()))?;
        request.headers_mut().insert(name, value);
    }
    request.headers_mut().extend(site.fixed_headers(&uri).map_err(away)?);
    request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token.clone())));
    let config = WebSocketConfig::default()
        .max_message_size(Some(site.bytes_max))
        .max_frame_size(Some(site.bytes_max));
    let (socket, _) = client_async_with_config(request, stream, Some(config)).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::accept_async;

    use super::super::scripted::{ScriptedServer, new_request, no_receiver, world};
    use super::*;
    use crate::transport::TransportConnection;

    #[tokio::test]
    async fn a_server_that_names_no_subprotocol_is_spoken_to() {
        let world = world(|stream| async move {
            // It refuses nothing and names nothing.
            let Ok(mut socket) = accept_async(stream).await else { return };
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let id = crate::message::id_and_method(text.as_bytes()).0.unwrap_or_default();
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
                let _ = socket.send(Message::text(answer)).await;
            }
        });
        let nothing = ScriptedServer::new(|_, _| unreachable!("it is asked nothing"));
        let site = UpstreamSite { world, url: "ws://a.example/".to_owned(), ..nothing.site() };
        let talk = open(site, no_receiver()).await.expect("a socket");
        talk.request(new_request(1, "ping"), no_receiver()).await.expect("an answer");
    }

    #[tokio::test]
    async fn a_server_that_is_left_is_told() {
        let (tell, mut told) = tokio::sync::mpsc::channel(1);
        let world = world(move |stream| {
            let tell = tell.clone();
            async move {
                let Ok(mut socket) = accept_async(stream).await else { return };
                let _ = tell.send(socket.next().await).await;
            }
        });
        let nothing = ScriptedServer::new(|_, _| unreachable!("it is asked nothing"));
        let site = UpstreamSite { world, url: "ws://a.example/".to_owned(), ..nothing.site() };
        drop(open(site, no_receiver()).await.expect("a socket"));
        // The first socket was given up when it did not name `mcp`.
        let heard =
            async { while !matches!(told.recv().await, Some(Some(Ok(Message::Close(_))))) {} };
        tokio::time::timeout(CLOSE_TIMEOUT * 20, heard).await.expect("it is told");
    }
}
