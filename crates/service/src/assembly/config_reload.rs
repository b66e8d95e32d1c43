//! Applies changes of the configuration file, and of the files that it names, while the server
//! runs.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own files, named in the configuration, are looked at"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::KeepActiveGuard;
use toolgate_host::RejectedTool;
use toolgate_world::folder_signal::FolderChangeSignal;
use toolgate_world::root::EntryFingerprint;

use crate::assembly::live_settings::{ReferencedSettingsPaths, ReloadableSettings, SettingsChange};
use crate::assembly::server_prep::create_folder;
use crate::config::{LoadedConfig, trust};
use crate::identity::Authenticator;
use crate::owned_files::stamp_of;

/// Delay after a change of a settings file, so that several quick changes cause only one reload.
const SETTLE_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of settings files that are watched. The same limit applies to the number of their
/// folders.
const FILES_MAX: usize = 10_000;

/// Watches the configuration file and the files that it names, and reloads the settings when they
/// change.
pub(crate) struct ConfigWatcher<L> {
    pub(crate) settings: Arc<ReloadableSettings>,
    pub(crate) identity: Option<Arc<Authenticator>>,
    /// Path of the configuration file, which need not exist.
    pub(crate) file: PathBuf,
    /// Function that loads the settings from the configuration file.
    pub(crate) load: L,
}

/// Watched settings files. Each has the fingerprint by which a change is recognized, or `None` if
/// the file does not exist.
type WatchedFileFingerprints = BTreeMap<PathBuf, Option<EntryFingerprint>>;

/// Watched settings files, and a signal that reports changes in their folders.
struct SettingsFileWatch {
    signal: FolderChangeSignal,
    stamps: WatchedFileFingerprints,
}

impl<L: Fn() -> anyhow::Result<LoadedConfig> + Send + Sync + 'static> ConfigWatcher<L> {
    /// Starts to watch the settings files, and reloads the settings after each change, until the
    /// returned guard is dropped. Only logs a warning if the files cannot be watched.
    pub(crate) fn start(self) -> KeepActiveGuard {
        if let Some(marks) = trust::marks_folder() {
            create_folder(&marks);
        }
        let watch = match self.open_watch(None) {
            Ok(watch) => watch,
            Err(err) => {
                let file = self.file.display();
                tracing::warn!(
                    "changes to {file} need a restart, because the file cannot be watched: {err}"
                );
                return KeepActiveGuard::none();
            }
        };
        KeepActiveGuard::new(AbortOnDropHandle::new(toolgate_net::spawn_task(
            Arc::new(self).run(watch),
        )))
    }

    /// Starts to watch the folders of the settings files. If `known` is given, the returned watch
    /// compares the files with these fingerprints, so that changes since then are noticed. Fails if
    /// the folder of the configuration file cannot be watched.
    fn open_watch(&self, known: Option<WatchedFileFingerprints>) -> io::Result<SettingsFileWatch> {
        let mut files = WatchedSettingsFiles::new(self);
        let folders: Vec<&Path> = files.folders.iter().map(PathBuf::as_path).collect();
        // The folder of the configuration file comes first, because it must be watched.
        let own = files.own_folder.as_path();
        let folders: Vec<_> = [own].into_iter().chain(folders).collect();
        let signal = FolderChangeSignal::new(&folders)?;
        // A file that changed or appeared while the settings were applied is noticed next time.
        if let Some(mut known) = known {
            for (path, stamp) in &mut files.stamps {
                *stamp = known.remove(path).flatten();
            }
        }
        Ok(SettingsFileWatch { signal, stamps: files.stamps })
    }

    async fn run(self: Arc<Self>, mut watch: SettingsFileWatch) {
        loop {
            let this = self.clone();
            let stamps =
                toolgate_net::spawn_blocking(move || WatchedSettingsFiles::new(&this).stamps).await;
            let stamps = stamps.unwrap_or_default();
            let changed = changed_files(&watch.stamps, &stamps);
            if changed.is_empty() {
                if let Err(err) = watch.signal.wait().await {
                    tracing::warn!("{} is no longer watched: {err}", self.file.display());
                    return;
                }
                tokio::time::sleep(SETTLE_DELAY).await;
                continue;
            }
            let this = self.clone();
            // Blocking: files are read and schemas are compiled.
            let _ = toolgate_net::spawn_blocking(move || this.reload(&changed)).await;
            // The new settings may name other files.
            match self.open_watch(Some(stamps)) {
                Ok(next) => watch = next,
                Err(err) => {
                    tracing::warn!("{} is no longer watched: {err}", self.file.display());
                    return;
                }
            }
        }
    }

    /// Loads the settings again after the files `changed` have changed, applies them, and logs the
    /// result. If the new settings are invalid, the old settings stay in force.
    fn reload(&self, changed: &[PathBuf]) {
        let others: Vec<_> = changed.iter().filter(|path| !self.is_own(path)).collect();
        let applied = (self.load)().and_then(|LoadedConfig { config, warnings, .. }| {
            let identity = self.identity.as_deref();
            let change = self.settings.apply(&config, identity, !others.is_empty())?;
            Ok((change, warnings))
        });
        let (change, warnings) = match applied {
            Ok(applied) => applied,
            Err(err) => {
                let hint = confinement_hint(&err);
                return tracing::error!(
                    "the settings are unchanged, and the earlier settings stay active. No \
                     part of the change applies, not even a restriction: {err:#}{hint}"
                );
            }
        };
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.report(&change);
        for other in others {
            tracing::info!("{} was read again", other.display());
        }
    }

    /// Returns true if `path` is the configuration file or the file that records the user's trust
    /// in it.
    fn is_own(&self, path: &Path) -> bool {
        path == self.file || trust::mark_path(&self.file).is_ok_and(|mark| mark == path)
    }

    fn report(&self, change: &SettingsChange) {
        let file = self.file.display();
        let SettingsChange { applied, upstreams, waiting, rejected } = change;
        let names: Vec<&str> = applied
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with("upstream."))
            .collect();
        if !names.is_empty() {
            tracing::info!("{file} was read again; active now: {}", names.join(", "));
        }
        for (name, change) in upstreams {
            tracing::info!("{file} was read again: the upstream `{name}` {change}");
        }
        for RejectedTool { owner, tool, reason } in rejected {
            tracing::warn!("the tool `{tool}` of the upstream `{owner}` is not served: {reason}");
        }
        if !waiting.is_empty() {
            tracing::warn!("{file}: these changes need a restart: {}", waiting.join(", "));
        }
    }
}

/// Settings files, such as the configuration and its command packs, and the folders that contain
/// them.
struct WatchedSettingsFiles {
    own_folder: PathBuf,
    folders: BTreeSet<PathBuf>,
    stamps: WatchedFileFingerprints,
}

impl WatchedSettingsFiles {
    fn new<L>(watcher: &ConfigWatcher<L>) -> Self {
        let ConfigWatcher { settings, file, .. } = watcher;
        let own_folder = folder_of(file);
        let mut files =
            Self { own_folder, folders: BTreeSet::new(), stamps: WatchedFileFingerprints::new() };
        files.add_file(file);
        if let Ok(mark) = trust::mark_path(file) {
            files.add_file(&mark);
        }
        let ReferencedSettingsPaths { files: others, packs, assets } = settings.sources();
        others.iter().for_each(|file| files.add_file(file));
        packs.iter().for_each(|pack| files.add_pack(pack));
        assets.iter().for_each(|folder| files.add_folder(folder));
        files
    }

    fn add_file(&mut self, file: &Path) {
        self.folders.insert(folder_of(file));
        self.stamps.insert(file.to_owned(), stamp_of(file));
    }

    /// Adds a pack of declared commands to the watched files: a file, or the `*.toml` files of a
    /// folder.
    fn add_pack(&mut self, pack: &Path) {
        let Ok(entries) = fs::read_dir(pack) else { return self.add_file(pack) };
        self.folders.insert(pack.to_owned());
        let files = entries.flatten().take(FILES_MAX).map(|entry| entry.path());
        files.filter(|file| file.extension().is_some_and(|it| it == "toml")).for_each(|file| {
            self.add_file(&file);
        });
    }

    /// Adds all files in `folder` and its subfolders to the watched files, up to [`FILES_MAX`].
    fn add_folder(&mut self, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        self.folders.insert(folder.to_owned());
        for entry in entries.flatten() {
            if self.stamps.len() + self.folders.len() > FILES_MAX {
                return;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.add_folder(&entry.path()),
                Ok(_) => self.add_file(&entry.path()),
                Err(_) => {}
            }
        }
    }
}

fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|path| !path.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

/// Returns the watched files that were created, deleted or changed.
fn changed_files(before: &WatchedFileFingerprints, now: &WatchedFileFingerprints) -> Vec<PathBuf> {
    let gone = before.keys().filter(|path| !now.contains_key(*path));
    let changed = now.iter().filter(|(path, stamp)| before.get(*path) != Some(*stamp));
    changed.map(|(path, _)| path).chain(gone).cloned().collect()
}

/// Returns advice to restart the server if a cause of `err` is a lack of permission: a confined
/// server can read only the folders that it knew at its start. Otherwise returns an empty text.
fn confinement_hint(err: &anyhow::Error) -> &'static str {
    let is_refused = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied)
    };
    match err.chain().any(is_refused) {
        true => {
            "; a confined server can read only the folders that its settings named when it \
             started, so restart it"
        }
        false => "",
    }
}
