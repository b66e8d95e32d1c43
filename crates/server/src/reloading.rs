//! Applies changes of upstreams in the configuration file while the server runs. Other changes need
//! a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use toolgate_contract::Hold;
use toolgate_toolsets::world::stirring::Stirring;

use crate::config::{Config, Loaded, trust};
use crate::ground::make;
use crate::trusted::{Stamp, stamp_of};
use crate::upstreams::{self, Offered};

/// Delay after a file event, so that several events cause one check.
const GATHERED: Duration = Duration::from_millis(200);

/// Configuration file that is watched for changes.
pub(crate) struct Follows<L> {
    pub(crate) offered: Offered,
    /// Path of the configuration file, which need not exist.
    pub(crate) file: PathBuf,
    /// Function that loads the configuration.
    pub(crate) load: L,
    /// Text of the configuration that the server started with.
    pub(crate) began_with: String,
}

/// Stamps of the file and of its trust mark.
#[derive(PartialEq, Eq)]
struct State {
    file: Option<Stamp>,
    mark: Option<Stamp>,
}

impl<L: Fn() -> anyhow::Result<Loaded> + Send + 'static> Follows<L> {
    /// Watches the file until the result is dropped.
    pub(crate) fn begin(self) -> Hold {
        let stirring = match self.watched() {
            Ok(stirring) => stirring,
            Err(err) => {
                let file = self.file.display();
                tracing::warn!("{file} is not followed, since it cannot be watched: {err}");
                return Hold::nothing();
            }
        };
        // The watch is active, so later changes are noticed.
        let seen = self.state();
        let task = tokio::spawn(self.go_on(stirring, seen));
        Hold::of(Ends(task))
    }

    /// Watches the folders of the file and of its trust mark.
    fn watched(&self) -> io::Result<Stirring> {
        let folder = self.file.parent().filter(|path| !path.as_os_str().is_empty());
        let marks = trust::marks();
        marks.iter().for_each(|marks| make(marks));
        let folders: Vec<_> =
            [folder.unwrap_or(Path::new("."))].into_iter().chain(marks.as_deref()).collect();
        Stirring::of(&folders)
    }

    fn state(&self) -> State {
        let mark = trust::mark(&self.file).ok().as_deref().and_then(stamp_of);
        State { file: stamp_of(&self.file), mark }
    }

    async fn go_on(self, stirring: Stirring, mut seen: State) {
        loop {
            if let Err(err) = stirring.next().await {
                tracing::warn!("{} is not followed any more: {err}", self.file.display());
                return;
            }
            tokio::time::sleep(GATHERED).await;
            let now = self.state();
            if now != seen {
                seen = now;
                self.take_over();
            }
        }
    }

    /// Applies the upstreams of the changed file. An invalid file changes nothing.
    ///
    /// If other settings have changed too, only removals are applied. The other change may be a
    /// rule that guards a new upstream, and it is not in force before a restart.
    fn take_over(&self) {
        let file = self.file.display();
        let taken = (self.load)().and_then(|Loaded { config, .. }| {
            upstreams::check(&config)?;
            let has_more = rest(&written(&config)) != rest(&self.began_with);
            let tables = match has_more {
                true => self.offered.upstreams.as_they_are(&config.upstream),
                false => config.upstream,
            };
            let became = self.offered.change(&tables).map_err(|why| anyhow!(why))?;
            Ok((became, has_more))
        });
        let (became, has_more) = match taken {
            Ok(taken) => taken,
            Err(err) => return tracing::error!("the upstreams stay as they were: {err:#}"),
        };
        for (name, what) in became {
            tracing::info!("{file} was read again: the upstream `{name}` {what}");
        }
        if has_more {
            tracing::warn!(
                "{file} has changed beyond its upstreams: that holds from the next start, and so do \
                 upstreams that are new or other, which it may be to guard"
            );
        }
    }
}

/// Returns the text that `config` was read from.
pub(crate) fn written(config: &Config) -> String {
    config.source.as_ref().map(|source| source.text.clone()).unwrap_or_default()
}

/// Returns the settings of `text` without upstreams.
fn rest(text: &str) -> toml::Table {
    let mut table: toml::Table = toml::from_str(text).unwrap_or_default();
    table.remove("upstream");
    table
}

/// Task that is aborted on drop.
struct Ends(tokio::task::JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}
