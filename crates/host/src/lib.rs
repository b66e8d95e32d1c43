//! One registry and one call path: every call passes the gate, `pipeline.rs`.
//!
//! The host knows no socket and no protocol. What it answers is spelled by a dialect.

mod pipeline;
mod catalog;
mod validate;
mod wording;
mod policy;
mod limits;
mod audit;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolgate_contract::{Answer, Call, CallError, Caller, EventSink, Request, ToolPage};

pub use audit::{Audit, Destination as AuditDestination};
pub use catalog::{Catalog, CatalogError};
pub use limits::Limits;
pub use policy::{BadRule, Policy};
pub use validate::OutputCheck;

/// Answers requests: lists the catalog and runs calls through the gate.
pub struct Host {
    pub(crate) catalog: Catalog,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) settings: Settings,
}

/// How the gate behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a call may take where its tool does not say.
    pub deadline: Duration,
    /// How long a cancelled call may take to stop by itself.
    pub cancel_grace: Duration,
    /// What happens to output that breaks its schema.
    pub output_check: OutputCheck,
    /// The most tools in one page of a list.
    pub page_size: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            cancel_grace: Duration::from_secs(2),
            output_check: OutputCheck::Enforce,
            page_size: 200,
        }
    }
}

/// A request and all that is known of who makes it.
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Who asks.
    pub caller: Caller,
    /// Which dialect it came by.
    pub dialect: &'static str,
    /// Cancelled when nobody wants the answer any more.
    pub cancel: CancellationToken,
    /// Where its events go.
    pub events: EventSink,
}

impl Host {
    /// A host that offers `catalog` under these rules.
    pub fn new(
        catalog: Catalog,
        policy: Policy,
        limits: Limits,
        audit: Audit,
        settings: Settings,
    ) -> Self {
        Self { catalog, policy, limits, audit, settings }
    }

    /// Answers one request.
    ///
    /// Drop the future and a call in it is cut where it stands; cancel its token
    /// and it ends in order.
    pub async fn answer(&self, asked: Asked) -> Result<Answer, CallError> {
        let Asked { request, caller, dialect, cancel, events } = asked;
        match request {
            Request::ListTools { after } => {
                let page = self.catalog.page(after.as_ref(), self.settings.page_size, |spec| {
                    self.policy.shows(&caller, spec)
                });
                Ok(Answer::Tools(page))
            }
            Request::CallTool { tool, input } => {
                let call = Call { tool, input, caller, dialect, cancel, events };
                pipeline::run(self, call).await.map(Answer::Output)
            }
        }
    }

    /// The tools `caller` may use, all of them.
    pub fn tools(&self, caller: &Caller) -> ToolPage {
        self.catalog.page(None, usize::MAX, |spec| self.policy.shows(caller, spec))
    }

    /// Waits until every record written so far is where it belongs.
    pub fn flush(&self) {
        self.audit.flush();
    }
}
