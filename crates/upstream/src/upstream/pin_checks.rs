//! Checks a pinned tool against its current definition, on the connection over which it is called.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Upstream;
use super::failures::duration_text;
use crate::connection::UpstreamConnection;
use crate::connection::checked_pins::PinCheckTime;
use crate::listing;
use crate::pins::PinPolicy;
use crate::transport::UpstreamRequestFailure;
use crate::transport::describe_failure;

impl Upstream {
    /// Records that the upstream's tools may have changed. This invalidates earlier checks of pins
    /// on all connections.
    pub(super) fn invalidate_checks(&self) {
        self.tools_version.fetch_add(1, Ordering::AcqRel);
    }

    /// Checks that the tool `name` on the connection `link` matches its pin, if it has one.
    pub(crate) async fn check_pin(
        &self,
        link: &UpstreamConnection,
        name: &str,
    ) -> Result<(), ToolError> {
        let turn = self.tools_version.load(Ordering::Acquire);
        let served = || self.lasting.upstream();
        if link.checked_pins.is_checked(turn, name, || Some(served()?.host.pins())) {
            return Ok(());
        }
        let begun = PinCheckTime { turn, at: Instant::now() };
        let served = served().ok_or_else(|| {
            ToolError::new(ToolErrorKind::Unavailable, "the upstream is no longer served")
        })?;
        let pinned = served.host.pins();
        if pinned.may_withhold(&self.name) {
            let known = self.tools_at(link, begun, true).await?;
            if self.check_pin_among(&pinned, &known, name).is_err() {
                // The change may have been undone without a notification.
                let now = self.tools_at(link, begun, false).await?;
                self.check_pin_among(&pinned, &now, name)?;
            }
        }
        let mut checked = link.checked_pins.lock_current(turn);
        // A change during the check is checked again with the next call.
        if self.tools_version.load(Ordering::Acquire) == turn {
            checked.since.get_or_insert(begun);
            // Names that matched other pins are checked again.
            if !checked.pins.as_ref().is_some_and(|(by, _)| by.is_same_lock(&pinned)) {
                checked.names.clear();
                checked.pins = Some((pinned, begun.at));
            }
            checked.names.insert(name.to_owned());
        }
        Ok(())
    }

    /// Checks the definition of the tool `name` in `tools` against its pin.
    fn check_pin_among(
        &self,
        pinned: &PinPolicy,
        tools: &[Value],
        name: &str,
    ) -> Result<(), ToolError> {
        let entries = tools.iter().filter(|entry| entry["name"] == name);
        let served = pinned.served_tools(&self.name, entries);
        let withheld = served.iter().find_map(|tool| tool.withheld.clone());
        let gone = || format!("`{name}` of the upstream `{}` no longer exists", self.name);
        match withheld.or_else(|| served.is_empty().then(gone)) {
            None => Ok(()),
            Some(why) => Err(ToolError::new(ToolErrorKind::Unavailable, why)),
        }
    }

    /// Returns the tools that the upstream lists over `link`. Lists them again unless the last
    /// listing is newer than `begun`. With `known`, an older listing is enough if the upstream has
    /// announced no change of its tools since and the listing has not expired.
    async fn tools_at(
        &self,
        link: &UpstreamConnection,
        begun: PinCheckTime,
        known: bool,
    ) -> Result<Arc<[Value]>, ToolError> {
        let mut listed = link.checked_pins.tools.lock().await;
        if let Some((then, tools)) = &*listed
            && if known { then.is_valid_in(begun.turn) } else { then.at >= begun.at }
        {
            return Ok(tools.clone());
        }
        // A change during the listing belongs to a later turn.
        let then =
            PinCheckTime { turn: self.tools_version.load(Ordering::Acquire), at: Instant::now() };
        let within = Duration::from_millis(self.settings.start_ms);
        let tools = tokio::time::timeout(within, listing::list_tools(&self.name, link)).await;
        let late = |_| {
            Err(UpstreamRequestFailure::Lost(format!(
                "it did not answer within {}",
                duration_text(within)
            )))
        };
        match tools.unwrap_or_else(late) {
            Ok(tools) => {
                let tools: Arc<[Value]> = tools.into();
                *listed = Some((then, tools.clone()));
                Ok(tools)
            }
            Err(failure) => {
                let name = &self.name;
                let why = describe_failure(&failure);
                let message =
                    format!("listing the upstream `{name}`, whose tools are pinned, failed: {why}");
                Err(ToolError::new(ToolErrorKind::Unavailable, message))
            }
        }
    }
}
