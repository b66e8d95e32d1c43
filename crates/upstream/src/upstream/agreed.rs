//! Whether a tool is what was agreed to where it is called: by what that connection lists, whatever
//! was known before.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use toolgate_contract::{Fault, ToolError};

use super::Upstream;
use super::failed::told;
use crate::link::Link;
use crate::listing;
use crate::wire::Trouble;

/// What is known of the tools at one connection.
#[derive(Default)]
pub(crate) struct Agreed {
    /// Those that were seen to be as they were agreed to.
    seen: Mutex<HashSet<String>>,
    /// All of them, once they were asked for. One asks at a time.
    listed: tokio::sync::Mutex<Option<Arc<[Value]>>>,
}

impl Agreed {
    fn seen(&self) -> MutexGuard<'_, HashSet<String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They may be others now.
    pub(super) fn is_over(&self) {
        self.seen().clear();
        // Who asks now is told of the change once it has come.
        if let Ok(mut listed) = self.listed.try_lock() {
            *listed = None;
        }
    }
}

impl Upstream {
    /// Refuses the tool `name` at `link` where it is pinned and is listed there as another, or not.
    pub(crate) async fn is_as_agreed(&self, link: &Link, name: &str) -> Result<(), ToolError> {
        if link.agreed.seen().contains(name) {
            return Ok(());
        }
        let away = |why: String| ToolError::new(Fault::Unavailable, why);
        let served = self.lasting.upstream();
        let served = served.ok_or_else(|| away("it is not served any more".to_owned()))?;
        let pinned = served.keeps.pinned();
        if pinned.may_withhold(&self.name) {
            let tools = self.listed_at(link).await?;
            let entries = tools.iter().filter(|entry| entry["name"] == name);
            let judged = pinned.judge(&self.name, entries);
            let withheld = judged.iter().find_map(|judged| judged.withheld.clone());
            match (judged.is_empty(), withheld) {
                (_, Some(why)) => return Err(away(why)),
                (true, None) => {
                    let name = format!("`{name}` of the upstream `{}`", self.name);
                    return Err(away(format!("{name} is not there any more, or is another")));
                }
                (false, None) => {}
            }
        }
        link.agreed.seen().insert(name.to_owned());
        Ok(())
    }

    async fn listed_at(&self, link: &Link) -> Result<Arc<[Value]>, ToolError> {
        let mut listed = link.agreed.listed.lock().await;
        if let Some(tools) = &*listed {
            return Ok(tools.clone());
        }
        let within = Duration::from_millis(self.settings.start_ms);
        let tools = tokio::time::timeout(within, listing::tools(&self.name, link)).await;
        let late = |_| Err(Trouble::Lost("it does not answer".to_owned()));
        let tools: Arc<[Value]> = match tools.unwrap_or_else(late) {
            Ok(tools) => tools.into(),
            Err(trouble) => {
                let (name, why) = (&self.name, told(&trouble));
                let message = format!(
                    "the tools of the upstream `{name}` are pinned, and it does not list them: {why}"
                );
                return Err(ToolError::new(Fault::Unavailable, message));
            }
        };
        Ok(listed.insert(tools).clone())
    }
}
