//! A pool of HTTP/1.1 connections to one address.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use crate::wire::Trouble;
use crate::world::{Place, World};

/// Longest idle time of a connection. Servers close idle connections after five seconds (Node.js)
/// or later.
const KEPT: Duration = Duration::from_secs(4);
/// Most idle connections.
const KEPT_MAX: usize = 64;

type Sender = SendRequest<Full<Bytes>>;

/// A pool of connections to one address.
pub(crate) struct Pool {
    world: Arc<dyn World>,
    place: Place,
    idle: Mutex<Vec<(Instant, Sender)>>,
}

impl Pool {
    pub(crate) fn new(world: Arc<dyn World>, place: Place) -> Arc<Self> {
        Arc::new(Self { world, place, idle: Mutex::default() })
    }

    /// Sends `request`. The returned handle gives the connection back once the response was read.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Giving), Trouble> {
        let mut request = Some(request);
        while let Some(mut sender) = self.kept() {
            if sender.ready().await.is_err() {
                continue;
            }
            let Some(sent) = request.take() else { break };
            match sender.try_send_request(sent).await {
                Ok(response) => return Ok((response, self.giving(sender))),
                Err(mut err) => match err.take_message() {
                    // The request was not sent, because the server had closed the connection.
                    Some(unsent) => request = Some(unsent),
                    None => return Err(Trouble::Lost(err.into_error().to_string())),
                },
            }
        }
        let request = request.ok_or_else(|| Trouble::Lost("it was not sent".to_owned()))?;
        let stream = self.world.dial(&self.place).await.map_err(Trouble::NotSent)?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|err| Trouble::NotSent(err.to_string()))?;
        tokio::spawn(async move {
            // Failures reach the waiting request. An idle connection has nobody to report to.
            let _ = connection.await;
        });
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|err| Trouble::Lost(err.to_string()))?;
        Ok((response, self.giving(sender)))
    }

    fn giving(self: &Arc<Self>, sender: Sender) -> Giving {
        Giving { pool: self.clone(), sender }
    }

    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, sender)| since.elapsed() < KEPT && !sender.is_closed());
        idle.pop().map(|(_, sender)| sender)
    }
}

/// A pooled connection in use.
pub(crate) struct Giving {
    pool: Arc<Pool>,
    sender: Sender,
}

impl Giving {
    /// Returns the connection to the pool after the response was read to its end.
    pub(crate) fn back(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_MAX {
            idle.push((Instant::now(), self.sender));
        }
    }
}
