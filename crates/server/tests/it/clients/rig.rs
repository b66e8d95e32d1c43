//! Two servers for clients that try every feature: toolgate with a workspace, and an example server
//! with one tool, prompt or resource of each type.

use std::path::PathBuf;

use crate::support::{HttpServerProcess, ServerLaunchOptions, TempWorkspace, binary};

/// Two HTTP servers for tests of client programs. Over stdio, each client starts its own server.
pub(super) struct ClientTestServers {
    pub(super) workspace: TempWorkspace,
    pub(super) toolgate: HttpServerProcess,
    pub(super) everything: HttpServerProcess,
}

impl ClientTestServers {
    pub(super) fn new() -> Self {
        // Enough tools for two pages of a list.
        let many = TempWorkspace::with_many_tools(200);
        let own = "[server]\nresults = \"both\"\n\n[exec]\nconfirm = [\"touch\"]\n";
        let settings = format!("{own}\n{}", many.read("toolgate.toml"));
        let tea = "---\nname: tea\ndescription: How to brew tea.\n---\nBoil.\n";
        let workspace = many
            .file("toolgate.toml", settings)
            .file("dot.png", b"\x89PNG\r\n\x1a\n\x00\xff")
            .file("folder/a file.txt", "in a folder\n")
            .file(".ignore", "folder/\n")
            .file(".toolgate/skills/tea/SKILL.md", tea);
        let toolgate = ServerLaunchOptions::over(&workspace).served();
        Self { workspace, toolgate, everything: ServerLaunchOptions::everything().served() }
    }

    /// Returns the path of the example server's executable, which is next to the tested executable.
    pub(super) fn example() -> PathBuf {
        binary().with_file_name("example-everything")
    }
}
