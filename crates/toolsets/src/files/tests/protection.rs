//! Tests that files which control programs outside the sandbox can be read but not changed.

use std::fs;

use serde_json::json;

use super::space::TestWorkspace;
use crate::files::FileSettings;

/// Checks that every tool that changes files refuses to change `path`.
async fn check_protected(space: &TestWorkspace, path: &str) {
    let edits = json!([{ "old": "a", "new": "b" }]);
    let calls = [
        ("files.write", json!({ "path": path, "content": "x", "overwrite": true })),
        ("files.edit", json!({ "path": path, "edits": edits })),
        ("files.mkdir", json!({ "path": path })),
        ("files.delete", json!({ "path": path, "recursive": true })),
        ("files.move", json!({ "source": path, "destination": "stolen" })),
        ("files.move", json!({ "source": "mine", "destination": path, "overwrite": true })),
        ("files.copy", json!({ "source": "mine", "destination": path, "overwrite": true })),
    ];
    for (tool, input) in calls {
        let failed = space.fails(tool, input.clone()).await;
        assert_eq!(failed.reason, "not_allowed", "{tool} {input}: {failed:?}");
        assert!(failed.message.contains("protected"), "{failed:?}");
    }
}

#[tokio::test]
async fn protected_names_are_refused_in_any_spelling_even_if_missing() {
    let space = TestWorkspace::new();
    space.put("mine", "a");
    for path in [
        ".git",
        ".git/hooks/pre-commit",
        ".git/config",
        "sub/.git",
        "deep/er/.git/config",
        ".GIT/config",
        ".git./config",
        ".git /config",
        ".g\u{200c}it/config",
        ".git\u{200c}",
        "\u{feff}.git",
        ".git::$INDEX_ALLOCATION/config",
        "GIT~1/config",
        ".mcp.json",
        ".MCP.json",
        ".vscode/tasks.json",
        ".vſcode/tasks.json",
        ".idea/workspace.xml",
        ".claude/settings.json",
        ".agents/skills/tea/SKILL.md",
        ".codex/config.toml",
        ".zed/tasks.json",
        ".Windsurf/hooks.json",
        ".devcontainer/devcontainer.json",
        "opencode.json",
        ".cursor/mcp.json",
        ".gemini/settings.json",
        "toolgate.toml",
        "Toolgate.TOML",
        "toolgate.lock",
        "./x/../.git/config",
    ] {
        check_protected(&space, path).await;
    }
    assert_eq!(space.get("mine"), b"a");
    assert_eq!(fs::read_dir(&space.ws).unwrap().count(), 1);
}

#[tokio::test]
async fn names_that_only_resemble_protected_ones_can_be_written() {
    let space = TestWorkspace::new();
    for path in [".gitignore", ".github/x", "git", ".git2", "toolgate.toml.md", "a.git", ".vscode2"]
    {
        space.ok("files.write", json!({ "path": path, "content": "x" })).await;
    }
}

#[tokio::test]
async fn protected_files_can_be_read() {
    let space = TestWorkspace::new();
    space.put(".git/config", "[core]\n");
    assert_eq!(
        space.ok("files.read", json!({ "path": ".git/config" })).await["content"],
        "[core]\n"
    );
    assert_eq!(
        space.ok("files.list", json!({ "path": ".git" })).await["entries"][0]["name"],
        "config"
    );
    let found = space.ok("files.search", json!({ "path": ".git", "query": "core" })).await;
    assert_eq!(found["matches"][0]["path"], ".git/config");
}

#[tokio::test]
async fn a_symlink_does_not_bypass_protection() {
    let space = TestWorkspace::new();
    space.put(".git/hooks/sample", "a");
    space.put("mine", "a");
    space.symlink(".git", "x");
    space.symlink(".git/hooks/sample", "y");
    for path in ["x/hooks/pre-commit", "x/hooks/deep/er", "x/hooks/sample"] {
        let failed = space
            .fails("files.write", json!({ "path": path, "content": "x", "overwrite": true }))
            .await;
        assert_eq!(failed.reason, "not_allowed");
        assert!(failed.message.contains("leads into `.git`"), "{failed:?}");
    }
    let edits = json!([{ "old": "a", "new": "b" }]);
    for (tool, input) in [
        ("files.write", json!({ "path": "y", "content": "x", "overwrite": true })),
        ("files.edit", json!({ "path": "y", "edits": edits })),
        ("files.delete", json!({ "path": "x/hooks", "recursive": true })),
        ("files.mkdir", json!({ "path": "x/new/deep" })),
        ("files.move", json!({ "source": "mine", "destination": "x/hooks/pre-commit" })),
        ("files.copy", json!({ "source": "mine", "destination": "x/hooks/pre-commit" })),
        ("files.copy", json!({ "source": "mine", "destination": "y", "overwrite": true })),
    ] {
        assert_eq!(space.fails(tool, input.clone()).await.reason, "not_allowed", "{tool} {input}");
    }
    assert_eq!(space.get(".git/hooks/sample"), b"a");
    assert_eq!(fs::read_dir(space.ws.join(".git/hooks")).unwrap().count(), 1);
    // The link itself is not protected.
    space.ok("files.delete", json!({ "path": "x" })).await;
    assert!(space.has(".git/hooks/sample"));
}

#[tokio::test]
async fn a_directory_with_a_protected_one_inside_is_not_moved_deleted_or_copied() {
    let space = TestWorkspace::new();
    space.put("sub/repo/.git/config", "a");
    space.put("sub/file", "a");
    for (tool, input) in [
        ("files.delete", json!({ "path": "sub", "recursive": true })),
        ("files.move", json!({ "source": "sub", "destination": "moved" })),
        ("files.copy", json!({ "source": "sub", "destination": "copied", "recursive": true })),
    ] {
        let failed = space.fails(tool, input).await;
        assert_eq!(failed.reason, "not_allowed");
        assert!(failed.message.contains("`sub/repo/.git`"), "{failed:?}");
    }
    assert!(space.has("sub/file") && space.has("sub/repo/.git/config"));
    assert_eq!(fs::read_dir(&space.ws).unwrap().count(), 1);
}

#[tokio::test]
async fn settings_protect_names_and_paths() {
    let protected = vec![".github/workflows".to_owned(), "secret".to_owned()];
    let space = TestWorkspace::with(&FileSettings { protected, ..FileSettings::default() });
    space.put("flows/ci.yml", "a");
    let write = |path: &str| json!({ "path": path, "content": "x" });
    for path in [".github/workflows/ci.yml", "a/.GitHub/Workflows", "secret", "a/Secret/b"] {
        assert_eq!(space.fails("files.write", write(path)).await.reason, "not_allowed");
    }
    // The default names stay protected.
    assert_eq!(space.fails("files.write", write(".git/config")).await.reason, "not_allowed");
    for path in [".github/x", "workflows/x"] {
        space.ok("files.write", write(path)).await;
    }
    let into = json!({ "source": "flows", "destination": ".github/workflows" });
    assert_eq!(space.fails("files.move", into).await.reason, "not_allowed");
    space.put("parts/workflows/ci.yml", "a");
    fs::remove_dir_all(space.ws.join(".github")).unwrap();
    let under = json!({ "source": "parts", "destination": ".github" });
    assert_eq!(space.fails("files.move", under).await.reason, "not_allowed");
}

#[tokio::test]
async fn the_root_itself_is_not_changed() {
    let space = TestWorkspace::new();
    space.put("a/b", "x");
    let root = space.ws.to_str().unwrap().to_owned();
    for path in [".", "./", "a/..", "a/../", &root] {
        for (tool, input) in [
            ("files.delete", json!({ "path": path, "recursive": true })),
            ("files.move", json!({ "source": path, "destination": "b" })),
            ("files.move", json!({ "source": "a", "destination": path, "overwrite": true })),
            ("files.write", json!({ "path": path, "content": "x", "overwrite": true })),
        ] {
            assert_eq!(
                space.fails(tool, input.clone()).await.reason,
                "invalid_input",
                "{tool} {input}"
            );
        }
    }
    assert!(space.has("a/b"));
}

#[tokio::test]
async fn editor_settings_move_with_their_folder_and_cannot_be_written() {
    let space = TestWorkspace::new();
    space.put("node_modules/p/.vscode/tasks.json", "a");
    space.put("node_modules/p/toolgate.toml", "a");
    let write = json!({ "path": "node_modules/p/.vscode/new", "content": "x" });
    assert_eq!(space.fails("files.write", write).await.reason, "not_allowed");
    let copy = json!({ "source": "node_modules", "destination": "copied", "recursive": true });
    space.ok("files.copy", copy).await;
    let moved = json!({ "source": "copied/p", "destination": "moved" });
    space.ok("files.move", moved).await;
    assert!(space.has("moved/.vscode/tasks.json"));
    for path in ["node_modules", "moved"] {
        space.ok("files.delete", json!({ "path": path, "recursive": true })).await;
        assert!(!space.has(path));
    }
    // At the workspace root they cannot be moved, copied or deleted.
    space.put(".vscode/tasks.json", "a");
    space.put("vs/tasks.json", "a");
    fs::create_dir(space.ws.join("away")).unwrap();
    for (tool, input) in [
        ("files.delete", json!({ "path": ".vscode", "recursive": true })),
        ("files.move", json!({ "source": ".vscode", "destination": "away/vs" })),
        ("files.move", json!({ "source": "vs", "destination": ".idea" })),
        ("files.copy", json!({ "source": "vs", "destination": ".claude", "recursive": true })),
    ] {
        assert_eq!(space.fails(tool, input.clone()).await.reason, "not_allowed", "{tool} {input}");
    }
}

#[tokio::test]
async fn protected_adds_names_and_releases_defaults() {
    let mut settings = FileSettings {
        protected: ["secret", ".idea", "!.vscode", "!.idea", "!conf/mine.toml", "!secret"]
            .map(str::to_owned)
            .into(),
        ..FileSettings::default()
    };
    settings.protect("conf/mine.toml");
    settings.protect("!own");
    let space = TestWorkspace::with(&settings);
    space.put("a/b/secret", "x");
    space.put("conf/mine.toml", "x");
    for path in ["a", "conf"] {
        let failed = space.fails("files.delete", json!({ "path": path, "recursive": true })).await;
        assert_eq!(failed.reason, "not_allowed");
    }
    let write = |path: &str| json!({ "path": path, "content": "x", "overwrite": true });
    for path in ["conf/mine.toml", "!own/x", ".idea/x", ".git/x"] {
        assert_eq!(space.fails("files.write", write(path)).await.reason, "not_allowed", "{path}");
    }
    space.ok("files.write", write(".vscode/x")).await;
}

#[tokio::test]
async fn instructions_are_protected_at_the_root_only_and_with_the_folders_around_them() {
    let mut settings = FileSettings::default();
    for folder in ["skills", "docs/./prompts", ".agents/skills"] {
        settings.protect_instructions(folder);
    }
    assert_eq!(
        settings.instructions,
        ["skills", "docs/./prompts"],
        "`.agents` is protected anyway"
    );
    let space = TestWorkspace::with(&settings);
    space.put("skills/tea/SKILL.md", "x");
    space.put("docs/prompts/tea.md", "x");
    space.put("new/prompts/tea.md", "x");
    let write = |path: &str| json!({ "path": path, "content": "y", "overwrite": true });
    for path in ["skills/tea/SKILL.md", "Skills./new.md", "docs/prompts/new.md"] {
        assert_eq!(space.fails("files.write", write(path)).await.reason, "not_allowed", "{path}");
    }
    for (tool, input) in [
        ("files.delete", json!({ "path": "docs", "recursive": true })),
        ("files.move", json!({ "source": "docs", "destination": "away" })),
        ("files.move", json!({ "source": "new", "destination": "skills" })),
        ("files.copy", json!({ "source": "new", "destination": "skills/new", "recursive": true })),
    ] {
        assert_eq!(space.fails(tool, input.clone()).await.reason, "not_allowed", "{tool} {input}");
    }
    for path in ["src/skills/a.md", "prompts/a.md", "docs/prompts.md"] {
        space.ok("files.write", write(path)).await;
    }
    space.ok("files.delete", json!({ "path": "src", "recursive": true })).await;
    let moved = json!({ "source": "new", "destination": "other" });
    space.ok("files.move", moved).await;
    assert!(space.has("docs/prompts/tea.md") && space.has("skills/tea/SKILL.md"));
}
