//! Pages of the server that belong to no dialect: metrics and the console.

use std::net::IpAddr;
use std::sync::Arc;

use toolgate_contract::FrameMetadata;
use toolgate_transports::http::{OutgoingResponse, ReceivedRequest, RequestSenderIdentity};

use crate::console::WebConsole;
use crate::identity::Authenticator;
use crate::telemetry::MetricsPage;

/// The server's own pages, which belong to no dialect: metrics and the console, if they are served.
#[derive(Default)]
pub(crate) struct ServerPages {
    pub(crate) metrics: Option<MetricsPage>,
    pub(crate) console: Option<Arc<WebConsole>>,
}

impl ServerPages {
    /// Returns true if `path` is the path of one of the server's own pages, and the page is
    /// enabled.
    pub(super) fn serve(&self, path: &str) -> bool {
        self.metrics_page(path).is_some() || self.console_at(path).is_some()
    }

    /// Returns true if `path` is the path of a page that accepts submitted forms.
    pub(super) fn accepts_form_at(&self, path: &str) -> bool {
        self.console_at(path).is_some() && WebConsole::takes_forms_at(path)
    }

    /// Authenticates the sender of the request `head` from the address `peer`. Returns `None` if
    /// the request is not for one of the server's own pages.
    pub(super) async fn authenticate(
        &self,
        identity: &Authenticator,
        head: &FrameMetadata,
        peer: IpAddr,
    ) -> Option<RequestSenderIdentity> {
        if let Some(console) = self.console_at(head.path()) {
            return Some(console.authenticate(head));
        }
        self.metrics_page(head.path())?;
        Some(identity.authenticate(None, head, peer).await)
    }

    /// Answers `incoming`, a request for one of the server's own pages. Returns `None` for other
    /// requests. `sessions` returns the number of open sessions.
    pub(super) async fn answer(
        &self,
        identity: &Authenticator,
        incoming: &ReceivedRequest,
        sessions: impl FnOnce() -> usize,
    ) -> Option<OutgoingResponse> {
        let head = &incoming.frame.head;
        if let Some(console) = self.console_at(head.path()) {
            return Some(console.answer(&incoming.frame, incoming.peer.ip()).await);
        }
        let page = self.metrics_page(head.path())?;
        let reply = page.answer(head, &incoming.sender, sessions());
        Some(OutgoingResponse::Single(identity.add_challenge(reply, head)))
    }

    fn metrics_page(&self, path: &str) -> Option<&MetricsPage> {
        self.metrics.as_ref().filter(|_| MetricsPage::is_path(path))
    }

    fn console_at(&self, path: &str) -> Option<&Arc<WebConsole>> {
        self.console.as_ref().filter(|_| WebConsole::is_path(path))
    }
}
