//! Applies changes of upstreams in the configuration file while the server runs. Other changes need
//! a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use toolgate_contract::WatchGuard;
use toolgate_world::folder_signal::FolderChangeSignal;

use crate::assembly::server_prep::create_folder;
use crate::config::{Config, LoadedConfig, trust};
use crate::owned_files::{OwnedFileStamp, stamp_of};
use crate::upstreams::{self, UpstreamCatalog};

/// Delay after a file event, so that several events cause one check.
const SETTLE_DELAY: Duration = Duration::from_millis(200);

/// Configuration file that is watched for changes.
pub(crate) struct ConfigWatcher<L> {
    pub(crate) catalog: UpstreamCatalog,
    /// Path of the configuration file, which need not exist.
    pub(crate) file: PathBuf,
    /// Function that loads the configuration.
    pub(crate) load: L,
    /// Text of the configuration with which the server started.
    pub(crate) initial_text: String,
}

/// The last known state of the file and of its trust mark.
#[derive(PartialEq, Eq)]
struct WatchedState {
    file: Option<OwnedFileStamp>,
    mark: Option<OwnedFileStamp>,
}

impl<L: Fn() -> anyhow::Result<LoadedConfig> + Send + 'static> ConfigWatcher<L> {
    /// Watches the file until the result is dropped.
    pub(crate) fn start(self) -> WatchGuard {
        let signal = match self.watch_folders() {
            Ok(signal) => signal,
            Err(err) => {
                let file = self.file.display();
                tracing::warn!(
                    "changes of {file} need a restart, because it cannot be watched: {err}"
                );
                return WatchGuard::none();
            }
        };
        // The watch is active, so later changes are noticed.
        let state = self.current_state();
        let task = tokio::spawn(self.run(signal, state));
        WatchGuard::new(AbortOnDrop(task))
    }

    /// Watches the folders of the file and of its trust mark.
    fn watch_folders(&self) -> io::Result<FolderChangeSignal> {
        let folder = self.file.parent().filter(|path| !path.as_os_str().is_empty());
        let marks = trust::marks_folder();
        marks.iter().for_each(|marks| create_folder(marks));
        let folders: Vec<_> =
            [folder.unwrap_or(Path::new("."))].into_iter().chain(marks.as_deref()).collect();
        FolderChangeSignal::new(&folders)
    }

    fn current_state(&self) -> WatchedState {
        let mark = trust::mark_path(&self.file).ok().as_deref().and_then(stamp_of);
        WatchedState { file: stamp_of(&self.file), mark }
    }

    async fn run(self, signal: FolderChangeSignal, mut last: WatchedState) {
        loop {
            if let Err(err) = signal.wait().await {
                tracing::warn!("{} is no longer watched: {err}", self.file.display());
                return;
            }
            tokio::time::sleep(SETTLE_DELAY).await;
            let now = self.current_state();
            if now != last {
                last = now;
                self.apply_upstreams();
            }
        }
    }

    /// Applies the upstreams of the changed file. An invalid file changes nothing.
    ///
    /// If other settings have changed, too, only removals of upstreams are applied. The other
    /// change may be a rule for a new upstream, and such a rule takes effect only after a restart.
    fn apply_upstreams(&self) {
        let file = self.file.display();
        let applied = (self.load)().and_then(|LoadedConfig { config, .. }| {
            upstreams::check_upstreams(&config)?;
            let has_more =
                without_upstreams(&source_text(&config)) != without_upstreams(&self.initial_text);
            let tables = match has_more {
                true => self.catalog.upstreams.settings_in_use(&config.upstream),
                false => config.upstream,
            };
            let changes = self.catalog.change_upstreams(&tables).map_err(|why| anyhow!(why))?;
            Ok((changes, has_more))
        });
        let (changes, has_more) = match applied {
            Ok(applied) => applied,
            Err(err) => return tracing::error!("the upstreams are unchanged: {err:#}"),
        };
        for (name, change) in changes {
            tracing::info!("{file} was read again: the upstream `{name}` {change}");
        }
        if has_more {
            tracing::warn!(
                "{file} has other changes too, which need a restart; until then, new and changed \
                 upstreams are not used, because other changes may restrict them"
            );
        }
    }
}

/// Returns the text from which `config` was read.
pub(crate) fn source_text(config: &Config) -> String {
    config.source.as_ref().map(|source| source.text.clone()).unwrap_or_default()
}

/// Returns the settings of `text` without upstreams.
fn without_upstreams(text: &str) -> toml::Table {
    let mut table: toml::Table = toml::from_str(text).unwrap_or_default();
    table.remove("upstream");
    table
}

/// Task that is aborted on drop.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
