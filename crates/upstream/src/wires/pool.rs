//! Connections over HTTP/1.1 to one place, kept for the next request.

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

/// How long a connection is kept that nobody uses: shorter than servers keep them, of which the
/// most hasty (Node's) do for five seconds.
const KEPT: Duration = Duration::from_secs(4);
/// How many are kept.
const KEPT_MAX: usize = 64;

type Sender = SendRequest<Full<Bytes>>;

/// Connections to one place.
pub(crate) struct Pool {
    world: Arc<dyn World>,
    place: Place,
    idle: Mutex<Vec<(Instant, Sender)>>,
}

impl Pool {
    pub(crate) fn new(world: Arc<dyn World>, place: Place) -> Arc<Self> {
        Arc::new(Self { world, place, idle: Mutex::default() })
    }

    /// Sends `request`; what comes is read by whoever asked. `giving` gives the connection back
    /// once all of it was read.
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
                    // It never left, since the other side had closed meanwhile.
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
            // Whoever waits for an answer is told; of a connection that idles nobody is.
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

/// A connection that is in use.
pub(crate) struct Giving {
    pool: Arc<Pool>,
    sender: Sender,
}

impl Giving {
    /// Gives it back: its answer was read to its end.
    pub(crate) fn back(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_MAX {
            idle.push((Instant::now(), self.sender));
        }
    }
}
