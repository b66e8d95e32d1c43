//! Tests of the `files` tools: a full disk, cancelled calls, and the specifications of the tools.

use std::fs;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use toolgate_contract::Effects;
use toolgate_world::Root;

use super::space::TestWorkspace;
use crate::files::{self, FileSettings, FolderDeleteConfirmation};

/// Mounted file system of 1 MiB. Dropping this value unmounts it.
struct SmallFileSystem(TempDir);

impl SmallFileSystem {
    fn mount() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir.path())
            .output();
        mount.is_ok_and(|done| done.status.success()).then(|| Self(dir))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_changes_nothing_and_leaves_no_files() {
    let Some(small) = SmallFileSystem::mount() else {
        eprintln!("SKIPPED: cannot mount a tmpfs here");
        return;
    };
    let space = TestWorkspace::at(small.0.path(), &FileSettings::default());
    space.put("f", "old");
    space.put("source", vec![b'x'; 400 << 10]);
    let large = "y".repeat(900 << 10);
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&space.ws).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let edits = json!([{ "old": "old", "new": large }]);
    for (tool, input, path) in [
        ("files.write", json!({ "path": "f", "content": large, "overwrite": true }), "f"),
        ("files.write", json!({ "path": "new", "content": large }), "new"),
        ("files.edit", json!({ "path": "f", "edits": edits }), "f"),
    ] {
        let failed = space.fails(tool, input).await;
        assert_eq!(failed.message, format!("the disk is full; `{path}` is unchanged"));
        assert_eq!(names(), ["f", "source"]);
    }
    space.ok("files.copy", json!({ "source": "source", "destination": "second" })).await;
    let failed =
        space.fails("files.copy", json!({ "source": "source", "destination": "third" })).await;
    assert!(failed.message.starts_with("the disk is full"), "{failed:?}");
    assert_eq!(names(), ["f", "second", "source"]);
    assert_eq!(space.get("f"), b"old");
}

#[tokio::test]
async fn a_cancelled_call_stops_and_changes_nothing() {
    let space = TestWorkspace::new();
    for at in 0..50 {
        space.put(&format!("d/{at}/f"), "needle");
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    for (tool, input) in [
        ("files.search", json!({ "query": "needle" })),
        ("files.tree", json!({})),
        ("files.list", json!({})),
        ("files.write", json!({ "path": "new", "content": "x" })),
        ("files.delete", json!({ "path": "d", "recursive": true })),
        ("files.copy", json!({ "source": "d", "destination": "e", "recursive": true })),
    ] {
        let failed = space.run_until(tool, input, cancel.clone()).await.unwrap_err();
        assert_eq!(failed.reason, "canceled", "{tool}");
    }
    assert_eq!(fs::read_dir(space.ws.join("d")).unwrap().count(), 50);
    assert_eq!(fs::read_dir(&space.ws).unwrap().count(), 1);
}

#[test]
fn every_tool_declares_its_effects_and_describes_each_argument() {
    let dir = TempDir::new().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let tools = files::tools(&root, &FileSettings::default());
    for tool in &tools {
        let spec = tool.spec();
        assert!(!spec.description.contains("  "), "{}", spec.id);
        let properties = spec.input_schema["properties"].as_object().unwrap();
        assert_eq!(spec.input_schema["additionalProperties"], false, "{}", spec.id);
        for (name, property) in properties {
            assert!(property["description"].is_string(), "{} {name}", spec.id);
        }
    }
    let effects =
        |id: &str| tools.iter().find(|tool| tool.spec().id.as_str() == id).unwrap().spec().effects;
    for id in ["read", "list", "tree", "info", "exists", "search"] {
        assert_eq!(effects(&format!("files.{id}")), Effects::Reads);
    }
    for id in ["write", "edit", "move", "copy", "delete"] {
        assert_eq!(effects(&format!("files.{id}")), Effects::Changes);
    }
    assert_eq!(effects("files.mkdir"), Effects::Adds);
}

#[test]
fn missing_settings_are_the_default_and_unknown_ones_are_refused() {
    let settings: FileSettings =
        serde_json::from_value(json!({ "confirm_folders": "never" })).unwrap();
    let confirm_folders = FolderDeleteConfirmation::Never;
    assert_eq!(settings, FileSettings { confirm_folders, ..FileSettings::default() });
    assert!(serde_json::from_value::<FileSettings>(json!({ "confirm": "never" })).is_err());
    assert!(settings.protected.is_empty());
}
