//! Handles HTTP requests: checks them, reads the body and passes them to the application.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming as IncomingBody;
use tokio::time::timeout;
use toolgate_contract::{Caller, Frame, Head, Reply};

use super::cors::Visitor;
use super::heads::{Doubt, is_last};
use super::keen::Lookout;
use super::room::{FREE_BYTES, Full, Holder, Room, Share};
use super::seats::{Seat, SeatBounds, Seats, Turn};
use super::sent::{Sent, plain, streamed, whole};
use super::unsent::{Owed, Unsent};
use super::upgrade::{Asked, switching};
use super::{Admission, Agreed, Bounds, Exchange, Incoming, Outgoing, Sender, Unread};

/// State that all connections of a listener share.
pub(super) struct Door {
    exchange: Arc<dyn Exchange>,
    admission: Admission,
    pub(super) seats: Arc<Seats>,
    /// Memory budget for request bodies. Each body keeps its part until it is answered.
    room: Room,
    pub(super) unsent: Arc<Unsent>,
    pub(super) lookout: Lookout,
    pub(super) bounds: Bounds,
}

/// Connection of one client.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) seat: Arc<Seat>,
    pub(super) owed: Arc<Owed>,
    pub(super) doubt: Doubt,
    /// WebSocket conversation to start after the last response.
    pub(super) agreed: Mutex<Option<Agreed>>,
}

impl Door {
    pub(super) fn new(exchange: Arc<dyn Exchange>, admission: Admission, bounds: Bounds) -> Self {
        let room = Room::new(bounds.body_bytes_max);
        let unsent = Unsent::new(bounds.unsent_bytes_max);
        let seats = Seats::new(SeatBounds {
            connections: bounds.connections_max,
            lasting: bounds.streams_max,
            lasting_each: bounds.streams_each,
            occupancy: bounds.occupancy.clone(),
        });
        let lookout = Lookout::default();
        Self { exchange, admission, seats, room, unsent, lookout, bounds }
    }

    pub(super) async fn answer(
        &self,
        request: Request<IncomingBody>,
        client: &Client,
    ) -> Response<Sent> {
        let turn = client.seat.turn();
        let is_last = is_last(request.headers());
        let mut response = self.answer_sure(request, client, &turn).await;
        let closes = is_last || client.doubt.get().is_some();
        if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|sent| sent.of(turn, client.owed.clone()))
    }

    /// Answers a request unless its head is ambiguous.
    async fn answer_sure(
        &self,
        request: Request<IncomingBody>,
        client: &Client,
        turn: &Turn,
    ) -> Response<Sent> {
        if let Some(doubt) = client.doubt.get() {
            return plain(StatusCode::BAD_REQUEST, &format!("{doubt}\n"));
        }
        if let Err(refusal) = self.admission.check(&request) {
            return plain(refusal.status, &refusal.why);
        }
        let visitor = Visitor::of(&request);
        let mut response = match &visitor {
            Some(visitor) if visitor.only_asks() => whole(Reply::empty(204)),
            Some(_) | None => self.answer_admitted(request, client, turn).await,
        };
        if let Some(visitor) = visitor {
            visitor.allow(response.headers_mut());
        }
        response
    }

    async fn answer_admitted(
        &self,
        mut request: Request<IncomingBody>,
        client: &Client,
        turn: &Turn,
    ) -> Response<Sent> {
        let path = request.uri().path();
        if path == "/healthz" && !self.exchange.answers_health() {
            return plain(StatusCode::OK, "ok\n");
        }
        if !self.exchange.serves(path) {
            let paths = self.exchange.paths().join(", ");
            let why = format!("nothing is served at {path}; what is: {paths}\n");
            return plain(StatusCode::NOT_FOUND, &why);
        }
        let asked = match Asked::by(&request) {
            Ok(asked) => asked,
            Err(misasked) => return misasked.refusal(),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let unfit = unreadable(&parts.method, &parts.headers);
        let head = head(parts);
        let sender = self.exchange.sender(&head, client.peer).await;
        let caller = match &sender {
            Sender::Known(caller) => {
                turn.is_of_somebody();
                caller.clone()
            }
            Sender::Anybody | Sender::Nobody { .. } | Sender::Several | Sender::Guesser { .. } => {
                Caller::http()
            }
        };
        let (body, _share) = match (&sender, unfit) {
            (Sender::Known(_) | Sender::Anybody, Some(unfit)) => {
                return self.refuse(&head, &unfit).await;
            }
            (Sender::Known(_) | Sender::Anybody, None) => {
                let max = match is_of_use(&head, &sender) {
                    true => self.bounds.body_bytes_max,
                    false => GLANCE_BYTES_MAX.min(self.bounds.body_bytes_max),
                };
                let holder = || Holder::of(&caller, client.peer.ip());
                match turn.while_sending(self.read(body, max, turn, holder)).await {
                    Ok((body, share)) => (body, share),
                    Err(unread) => return self.refuse(&head, &unread).await,
                }
            }
            (Sender::Nobody { .. } | Sender::Several | Sender::Guesser { .. }, Some(_)) => {
                (Bytes::new(), None)
            }
            (Sender::Nobody { .. } | Sender::Several | Sender::Guesser { .. }, None) => {
                (turn.while_sending(self.glance(body)).await, None)
            }
        };
        let known = matches!(sender, Sender::Known(_) | Sender::Anybody);
        let frame = Frame { head, body };
        let incoming = Incoming { frame, upgrade: asked.is_some(), sender };
        let head = &incoming.frame.head;
        match (self.exchange.exchange(&incoming).await, asked) {
            (Outgoing::Whole(reply), _) => whole(reply),
            (Outgoing::Events(events), _) => streamed(events, self.bounds.keep_alive, None),
            (Outgoing::Feed(events), _) => match self.seats.lasting(known.then_some(&caller)) {
                Some(lasting) => streamed(events, self.bounds.keep_alive, Some(lasting)),
                None => self.refuse(head, &Unread::Crowded).await,
            },
            (Outgoing::Socket(talk), Some(asked)) => {
                match self.seats.lasting(known.then_some(&caller)) {
                    Some(lasting) => {
                        let mut agreed =
                            client.agreed.lock().unwrap_or_else(PoisonError::into_inner);
                        *agreed = Some(Agreed { talk, upgrade, lasting });
                        switching(&asked)
                    }
                    None => self.refuse(head, &Unread::Crowded).await,
                }
            }
            (Outgoing::Socket(_), None) => {
                tracing::error!("a conversation was offered to a client that asked for none");
                plain(StatusCode::INTERNAL_SERVER_ERROR, "the server is at fault\n")
            }
        }
    }

    async fn refuse(&self, head: &Head, unread: &Unread) -> Response<Sent> {
        match self.exchange.unread(head, unread).await {
            Some(reply) => whole(reply),
            None => {
                let mut refusal = plain(unread.status(), &format!("{}\n", unread.told()));
                if unread.status() == StatusCode::SERVICE_UNAVAILABLE {
                    refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                }
                refusal
            }
        }
    }

    /// Reads a body of at most `max` bytes for `holder`. Its share of the memory budget must be
    /// kept until the answer.
    async fn read(
        &self,
        body: IncomingBody,
        max: usize,
        turn: &Turn,
        holder: impl Fn() -> Holder,
    ) -> Result<(Bytes, Option<Share<'_>>), Unread> {
        if body.size_hint().lower() > max as u64 {
            return Err(Unread::TooLarge { limit: max });
        }
        let whole = self.read_in_time(body, max, turn, holder);
        timeout(self.bounds.body_time_max, whole).await.unwrap_or(Err(Unread::Late))
    }

    async fn read_in_time(
        &self,
        mut body: IncomingBody,
        max: usize,
        turn: &Turn,
        holder: impl Fn() -> Holder,
    ) -> Result<(Bytes, Option<Share<'_>>), Unread> {
        let Some(first) = next_piece(&mut body).await? else { return Ok((Bytes::new(), None)) };
        if body.is_end_stream() && first.len() <= FREE_BYTES.min(max) {
            return Ok((first, None));
        }
        // Copied, because a one-byte piece keeps the whole read buffer alive.
        let mut whole = BytesMut::new();
        let mut share = None;
        let mut piece = first;
        loop {
            if whole.len() + piece.len() > max {
                return Err(Unread::TooLarge { limit: max });
            }
            let beyond = (whole.len() + piece.len()).saturating_sub(FREE_BYTES).min(piece.len());
            if beyond > 0 {
                let share = share.get_or_insert_with(|| self.room.share(holder()));
                share.grow(beyond).await?;
            }
            whole.extend_from_slice(&piece);
            let next = match &share {
                None => next_piece(&mut body).await,
                Some(share) => tokio::select! {
                    biased;
                    () = share.given_up() => Err(Unread::Full),
                    next = next_piece(&mut body) => next,
                },
            };
            turn.goes_on();
            match next? {
                Some(next) => piece = next,
                None => break,
            }
        }
        share.as_ref().map_or(Ok(()), Share::settle)?;
        Ok((whole.freeze(), share))
    }

    /// Reads a short body of an unauthenticated sender, outside of the memory budget.
    async fn glance(&self, body: IncomingBody) -> Bytes {
        let max = GLANCE_BYTES_MAX.min(self.bounds.body_bytes_max);
        if body.size_hint().lower() > max as u64 {
            return Bytes::new();
        }
        let whole = timeout(self.bounds.body_time_max, Limited::new(body, max).collect()).await;
        whole.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
    }
}

/// Largest body that is read from unauthenticated senders, or where none is expected, in bytes. It
/// is enough to find the message id.
const GLANCE_BYTES_MAX: usize = 64 << 10;

/// Returns true if the request may use a full body.
fn is_of_use(head: &Head, sender: &Sender) -> bool {
    *sender != Sender::Anybody && matches!(head, Head::Http { method: Method::POST, .. })
}

/// Returns the next part of `body`, or `None` at its end.
async fn next_piece(body: &mut IncomingBody) -> Result<Option<Bytes>, Unread> {
    loop {
        match body.frame().await {
            // Trailers are ignored.
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
            Some(Err(_)) => return Err(Unread::Broken),
            None => return Ok(None),
        }
    }
}

impl From<Full> for Unread {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

fn head(parts: Parts) -> Head {
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    Head::Http { method: parts.method, path, query, headers: parts.headers }
}

/// Rejects a POST body that is not uncompressed JSON.
fn unreadable(method: &Method, headers: &HeaderMap) -> Option<Unread> {
    if method != Method::POST {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = format!("the content type is `{kind}`; send application/json");
        return Some(Unread::Unfit(why));
    }
    let encoding = text(CONTENT_ENCODING).unwrap_or("identity");
    (!encoding.eq_ignore_ascii_case("identity")).then(|| {
        Unread::Unfit(format!("the content encoding is `{encoding}`; send the body as it is"))
    })
}
