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
use toolgate_contract::KeepActiveGuard;
use toolgate_net::{AnswerBusyPollState, ByteStream};

use super::conversation::{UpstreamConversation, run_until};
use super::site::{UpstreamEndpoint, describe_response};
use crate::address::{http_url, parse_url};
use crate::transport::describe_failure;
use crate::transport::{MessageReceiver, UpstreamRequestFailure};
use crate::world::NetworkAddress;

/// Longest wait for the closing handshake of the WebSocket.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the WebSocket at `site` (`ws:` or `wss:`) and starts a conversation over it.
pub(crate) async fn open(
    site: UpstreamEndpoint,
    receiver: Arc<dyn MessageReceiver>,
) -> Result<UpstreamConversation, String> {
    let describe = |failure: UpstreamRequestFailure| describe_failure(&failure);
    let token = site.token().await.map_err(describe)?;
    let socket = match connect(&site, token.as_ref()).await {
        Err(Error::Http(response)) if site.is_refused(response.status(), response.headers()) => {
            site.replace_refused_token(token.as_ref(), response.status(), response.headers())
                .await
                .map_err(describe)?;
            let token = site.token().await.map_err(describe)?;
            connect(&site, token.as_ref()).await
        }
        other => other,
    };
    let socket = socket.map_err(|err| match err {
        Error::Io(err) => err.to_string(),
        Error::Http(response) => {
            let answered = describe_response(response.status(), response.headers());
            format!("it {answered} instead of opening a WebSocket")
        }
        err => format!("the WebSocket handshake failed: {err}"),
    })?;
    let (mut sink, mut stream) = socket.split();
    let (conversation, mut messages, ends) = UpstreamConversation::start(
        receiver,
        KeepActiveGuard::none(),
        AnswerBusyPollState::for_waiter(),
    );
    let incoming = conversation.incoming();
    let dropped = ends.clone();
    toolgate_net::spawn_task(async move {
        let writing = async {
            while let Some(message) = messages.recv().await {
                let text = String::from_utf8_lossy(&message).into_owned();
                if let Err(err) = sink.send(Message::text(text)).await {
                    return incoming.shared.end(format!("writing to it failed: {err}"));
                }
            }
        };
        run_until(dropped, writing).await;
        // Some servers report a connection without a closing handshake as a failure.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.close()).await;
    });
    let incoming = conversation.incoming();
    let reading = async move {
        let why = loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => incoming.handle(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => incoming.handle(&bytes),
                Some(Ok(Message::Close(_))) | None => break "it closed the WebSocket".to_owned(),
                Some(Ok(_)) => {}
                Some(Err(err)) => break err.to_string(),
            }
        };
        incoming.shared.end(why);
    };
    toolgate_net::spawn_task(run_until(ends, reading));
    Ok(conversation)
}

/// Connects the WebSocket with the subprotocol `mcp`. If the server does not support subprotocols,
/// connects without one.
async fn connect(
    site: &UpstreamEndpoint,
    token: Option<&HeaderValue>,
) -> Result<WebSocketStream<Box<dyn ByteStream>>, Error> {
    let none = ProtocolError::SecWebSocketSubProtocolError(SubProtocolError::NoSubProtocol);
    match open_socket(site, token, Some("mcp")).await {
        Err(Error::Protocol(why)) if why == none => open_socket(site, token, None).await,
        outcome => outcome,
    }
}

async fn open_socket(
    site: &UpstreamEndpoint,
    token: Option<&HeaderValue>,
    subprotocol: Option<&str>,
) -> Result<WebSocketStream<Box<dyn ByteStream>>, Error> {
    let io_error = |why: String| Error::Io(std::io::Error::other(why));
    // The handshake is an HTTP request.
    let url = parse_url(&http_url(&site.url)).map_err(io_error)?;
    let address = NetworkAddress::from_url(&url, site.private_network);
    let stream = site.world.dial(&address).await.map_err(io_error)?;
    let mut request = Request::new(());
    *request.uri_mut() = site.url.trim().parse()?;
    let subprotocol = subprotocol.map(|it| ("sec-websocket-protocol", it.to_owned()));
    let own = [
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-version", "13".to_owned()),
        ("sec-websocket-key", generate_key()),
    ];
    for (name, value) in own.into_iter().chain(subprotocol) {
        let value = HeaderValue::try_from(value).map_err(|err| io_error(err.to_string()))?;
        request.headers_mut().insert(name, value);
    }
    request.headers_mut().extend(site.fixed_headers(&url).map_err(io_error)?);
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
    async fn a_server_without_a_subprotocol_is_accepted() {
        let world = world(|stream| async move {
            // This server accepts every handshake and names no subprotocol.
            let Ok(mut socket) = accept_async(stream).await else { return };
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let id = crate::message::id_and_method(text.as_bytes()).0.unwrap_or_default();
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
                let _ = socket.send(Message::text(answer)).await;
            }
        });
        let nothing = ScriptedServer::new(|_, _| unreachable!("it gets no requests"));
        let site = UpstreamEndpoint { world, url: "ws://a.example/".to_owned(), ..nothing.site() };
        let conversation = open(site, no_receiver()).await.expect("a socket");
        conversation.request(new_request(1, "ping"), no_receiver()).await.expect("an answer");
    }

    #[tokio::test]
    async fn a_dropped_conversation_closes_the_socket() {
        let (sender, mut received) = tokio::sync::mpsc::channel(1);
        let world = world(move |stream| {
            let sender = sender.clone();
            async move {
                let Ok(mut socket) = accept_async(stream).await else { return };
                let _ = sender.send(socket.next().await).await;
            }
        });
        let nothing = ScriptedServer::new(|_, _| unreachable!("it gets no requests"));
        let site = UpstreamEndpoint { world, url: "ws://a.example/".to_owned(), ..nothing.site() };
        drop(open(site, no_receiver()).await.expect("a socket"));
        // The first socket was given up when it did not name `mcp`.
        let closed =
            async { while !matches!(received.recv().await, Some(Some(Ok(Message::Close(_))))) {} };
        tokio::time::timeout(CLOSE_TIMEOUT * 20, closed).await.expect("a closing handshake");
    }
}
