//! A pool of HTTP/1.1 connections to one address.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use crate::transport::RequestFailure;
use crate::world::{NetworkAddress, UpstreamWorld};

/// Longest idle time of a connection. Servers close idle connections after five seconds or more.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Maximum number of idle connections.
const CONNECTIONS_MAX: usize = 64;

type HttpSender = SendRequest<Full<Bytes>>;

/// A pool of connections to one address.
pub(crate) struct HttpPool {
    world: Arc<dyn UpstreamWorld>,
    address: NetworkAddress,
    idle: Mutex<Vec<(Instant, HttpSender)>>,
}

impl HttpPool {
    pub(crate) fn new(world: Arc<dyn UpstreamWorld>, address: NetworkAddress) -> Arc<Self> {
        Arc::new(Self { world, address, idle: Mutex::default() })
    }

    /// Sends `request`. Use the returned handle to return the connection to the pool after the
    /// response was read.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, PooledConnection), RequestFailure> {
        let mut request = Some(request);
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            let Some(sent) = request.take() else { break };
            match sender.try_send_request(sent).await {
                Ok(response) => return Ok((response, self.in_use(sender))),
                Err(mut err) => match err.take_message() {
                    // The request was not sent, because the server had closed the connection.
                    Some(unsent) => request = Some(unsent),
                    None => return Err(RequestFailure::Lost(err.into_error().to_string())),
                },
            }
        }
        let request =
            request.ok_or_else(|| RequestFailure::Lost("the request was not sent".to_owned()))?;
        let stream = self.world.dial(&self.address).await.map_err(RequestFailure::NotSent)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|err| RequestFailure::NotSent(err.to_string()))?;
        tokio::spawn(async move {
            // Failures reach the waiting request. An idle connection has nobody to report to.
            let _ = connection.await;
        });
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|err| RequestFailure::Lost(err.to_string()))?;
        Ok((response, self.in_use(sender)))
    }

    fn in_use(self: &Arc<Self>, sender: HttpSender) -> PooledConnection {
        PooledConnection { pool: self.clone(), sender }
    }

    fn take_idle(&self) -> Option<HttpSender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, sender)| since.elapsed() < IDLE_MAX && !sender.is_closed());
        idle.pop().map(|(_, sender)| sender)
    }
}

/// A pooled connection in use.
pub(crate) struct PooledConnection {
    pool: Arc<HttpPool>,
    sender: HttpSender,
}

impl PooledConnection {
    /// Returns the connection to the pool. Call this after the response was read to its end.
    pub(crate) fn give_back(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CONNECTIONS_MAX {
            idle.push((Instant::now(), self.sender));
        }
    }
}
