//! Tests that `toolgate connect` adds the server to the settings of each client and removes it
//! again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use jsonc_parser::parse_to_serde_value;
use serde_json::Value;

use super::{CliCommandResult, TestCommandLine};
use crate::support::{TempWorkspace, binary, path};

/// Returns a workspace that contains the home folder `home` and the project folder `app`.
fn machine() -> TempWorkspace {
    TempWorkspace::new().file("app/README.md", "app").file("home/.keep", "")
}

/// Runs `toolgate connect` with `args` in the project folder.
fn connect(machine: &TempWorkspace, args: &[&str]) -> CliCommandResult {
    let args = [&["connect"][..], args].concat();
    let line = TestCommandLine::new(&machine.path("app"), &args);
    line.env("HOME", machine.path("home")).env("XDG_STATE_HOME", machine.path("state")).run()
}

#[track_caller]
fn connect_well(machine: &TempWorkspace, args: &[&str]) -> CliCommandResult {
    let done = connect(machine, args);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

/// Parses JSON with comments and trailing commas.
fn parse(text: &str) -> Value {
    let value = parse_to_serde_value(text.trim_start_matches('\u{feff}'), &Default::default());
    value.unwrap_or_else(|err| panic!("{err}: {text}"))
}

/// Settings of a client before `toolgate connect` changes them, written as in the client's
/// documentation.
struct ClientSettingsFixture {
    client: &'static str,
    file: &'static str,
    text: &'static str,
    /// JSON pointer to the table of servers in the client's settings.
    servers: &'static str,
}

const CURSOR: ClientSettingsFixture = ClientSettingsFixture {
    client: "cursor",
    file: "app/.cursor/mcp.json",
    text: "{\n  \"mcpServers\": {\n    \"server-name\": {\n      \"command\": \"npx\",\n      \
           \"args\": [\"-y\", \"mcp-server\"],\n      \"env\": { \"API_KEY\": \"value\" }\n    }\n  \
           }\n}\n",
    servers: "/mcpServers",
};

/// Settings of the clients that store them as JSON and have no other test.
const OTHERS: [ClientSettingsFixture; 10] = [
    ClientSettingsFixture {
        client: "claude",
        file: "app/.mcp.json",
        text: "{\r\n  \"mcpServers\": {\r\n    \"shared\": {\r\n      \"type\": \"http\",\r\n      \
               \"url\": \"${API_BASE_URL:-https://api.example.com}/mcp\"\r\n    }\r\n  }\r\n}\r\n",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "claude-desktop",
        file: "home/.config/Claude/claude_desktop_config.json",
        text: "\u{feff}{\"globalShortcut\":\"\",\"mcpServers\":{\"fs\":{\"command\":\"npx\"}}}",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "cline",
        file: "home/.cline/data/settings/cline_mcp_settings.json",
        text: "{\n\t\"mcpServers\": {\n\t\t\"a\": { \"command\": \"x\", \"disabled\": false }\n\t}\n}",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "gemini",
        file: "app/.gemini/settings.json",
        text: "{\n  // the theme\n  \"theme\": \"GitHub\",\n  \"tools\": { \"sandbox\": false }\n}\n",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "jetbrains",
        file: "app/.junie/mcp/mcp.json",
        text: "{\n    \"mcpServers\": {}\n}\n",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "roo",
        file: "app/.roo/mcp.json",
        text: "",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "vscode",
        file: "app/.vscode/mcp.json",
        text: "{\n\t// asked once\n\t\"inputs\": [\n\t\t{ \"type\": \"promptString\", \"id\": \"k\", \
               \"description\": \"k\", \"password\": true },\n\t],\n\t\"servers\": {\n\t\t\"p\": { \
               \"type\": \"stdio\", \"command\": \"npx\" }, // a browser\n\t},\n}\n",
        servers: "/servers",
    },
    ClientSettingsFixture {
        client: "windsurf",
        file: "home/.codeium/windsurf/mcp_config.json",
        text: "{\n  \"mcpServers\": {\n    \"remote\": { \"serverUrl\": \"x\" }\n  }\n}",
        servers: "/mcpServers",
    },
    ClientSettingsFixture {
        client: "zed",
        file: "app/.zed/settings.json",
        text: "// Zed settings\n//\n{\n  \"ui_font_size\": 16,\n  \"context_servers\": {\n    \
               \"local\": {\n      \"command\": \"x\",\n      \"args\": [],\n      \"env\": {},\n    \
               },\n  },\n}\n",
        servers: "/context_servers",
    },
    ClientSettingsFixture {
        client: "claude",
        file: "home/.claude.json",
        text: "{\n  \"numStartups\": 3,\n  \"projects\": { \"/a\": { \"mcpServers\": {} } }\n}\n",
        servers: "/mcpServers",
    },
];

#[test]
fn each_client_starts_toolgate_for_the_folder_and_removing_restores_the_bytes() {
    for ClientSettingsFixture { client, file, text, servers } in [CURSOR].into_iter().chain(OTHERS)
    {
        let machine = machine().file(file, text);
        let scope = if file.starts_with("home") { "user" } else { "project" };
        let done = connect_well(&machine, &[client, "--scope", scope, "--yes"]);
        let shown = ["\n+++ ", "\n@@ -", "\n+", "\"toolgate\": {"];
        assert!(shown.iter().all(|part| done.out.contains(part)), "{done:?}");
        let connected = machine.read(file);
        let old = parse(if text.is_empty() { "{}" } else { text });
        let mut new = parse(&connected);
        let all = new.pointer_mut(servers).unwrap().as_object_mut().unwrap();
        let entry = all.remove("toolgate").unwrap();
        assert_eq!(entry["command"], binary().to_str().unwrap(), "{connected}");
        let app = machine.path("app").canonicalize().unwrap();
        assert_eq!(entry["args"], serde_json::json!(["stdio", app]), "{connected}");
        assert_eq!(entry.get("type").is_some(), ["claude", "vscode"].contains(&client));
        assert_eq!(
            all,
            old.pointer(servers).and_then(Value::as_object).unwrap_or(&serde_json::Map::new())
        );
        for comment in ["// asked once", "// a browser", "// the theme", "// Zed settings"] {
            assert_eq!(connected.contains(comment), text.contains(comment), "{connected}");
        }

        let again = connect_well(&machine, &[client, "--scope", scope]);
        assert!(again.err.contains("already connected") && again.out.is_empty(), "{again:?}");
        assert_eq!(machine.read(file), connected);
        connect_well(&machine, &[client, "--scope", scope, "--remove", "--yes"]);
        assert_eq!(machine.read(file), text, "{client}");
        let again = connect_well(&machine, &[client, "--scope", scope, "--remove"]);
        assert!(again.err.contains("has no server `toolgate`"), "{again:?}");
    }
}

#[test]
fn codex_gets_a_table_with_its_own_names_and_removing_restores_the_bytes() {
    let text = "# mine\r\nmodel = \"gpt-5\"   # fast\r\n\r\n[mcp_servers.docs]\r\nurl = \
                'https://docs.example/mcp'\r\n\r\n# trusted\r\n[projects.\"/home/ada/app\"]\r\n\
                trust_level = \"trusted\"";
    for (args, expected) in [
        (&["--key-env", "TOOLGATE_KEY"][..], "bearer_token_env_var = \"TOOLGATE_KEY\"\r\n"),
        (&["--key", "abc"], "http_headers = { Authorization = \"Bearer abc\" }\r\n"),
    ] {
        let machine = machine().file("home/.codex/config.toml", text);
        let url = ["codex", "--url", "http://127.0.0.1:8000/mcp", "--yes"];
        connect_well(&machine, &[&url[..], args].concat());
        let connected = machine.read("home/.codex/config.toml");
        let table = "[mcp_servers.toolgate]\r\nurl = \"http://127.0.0.1:8000/mcp\"\r\n";
        assert!(connected.contains(&format!("{table}{expected}")), "{connected}");
        assert!(connected.contains("   # fast\r\n") && connected.contains("# trusted"));
        connect_well(&machine, &["codex", "--scope", "user", "--remove", "--yes"]);
        assert_eq!(machine.read("home/.codex/config.toml"), text);
    }
}

#[test]
fn a_running_server_is_written_in_the_form_of_the_client() {
    let url = "http://127.0.0.1:8000/mcp";
    for (client, file, key, pointer, expected) in [
        ("claude", ".claude.json", "--key-env", "headers/Authorization", "Bearer ${K}"),
        ("cursor", ".cursor/mcp.json", "--key-env", "headers/Authorization", "Bearer ${env:K}"),
        ("gemini", ".gemini/settings.json", "--key-env", "headers/Authorization", "Bearer ${K}"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "--key-env", "serverUrl", url),
        ("zed", ".config/zed/settings.json", "--key", "headers/Authorization", "Bearer K"),
        ("vscode", ".config/Code/User/mcp.json", "--key", "type", "http"),
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "--key", "args/2", url),
        ("jetbrains", ".junie/mcp/mcp.json", "--key", "env/AUTH", "Bearer K"),
    ] {
        let machine = machine();
        connect_well(&machine, &[client, "--url", url, key, "K", "--yes"]);
        let written = machine.path(&format!("home/{file}"));
        let settings = parse(&fs::read_to_string(&written).unwrap());
        let entry = settings.as_object().unwrap().values().next().unwrap();
        let found = entry.pointer(&format!("/toolgate/{pointer}"));
        assert_eq!(found, Some(&Value::from(expected)), "{client}: {settings}");
        let is_private = fs::metadata(&written).unwrap().mode() & 0o077 == 0;
        assert_eq!(is_private, key == "--key", "{client}");
        // The file and its folders did not exist.
        connect_well(&machine, &[client, "--scope", "user", "--remove", "--yes"]);
        let left: Vec<_> = fs::read_dir(machine.path("home")).unwrap().collect();
        assert_eq!(left.len(), 1, "{client}: {left:?}");
    }
}

#[test]
fn a_key_reaches_neither_a_project_nor_a_client_that_cannot_use_it() {
    let machine = machine();
    let url = ["--url", "http://127.0.0.1:8000/mcp"];
    for (args, expected) in [
        (&["cursor", "--key", "k", "--scope", "project"][..], "--scope user"),
        (&["zed", "--key-env", "K"], "does not read variables"),
        (&["cursor", "--key-env", "toolgate-1"], "is not the name of a variable"),
        (&["cursor", "--key", "a b"], "no header may have"),
    ] {
        let done = connect(&machine, &[args, &url[..], &["--yes"][..]].concat());
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains(expected), "{done:?}");
    }
    for url in ["http://127.0.0.1:8000", "http://127.0.0.1:8000/"] {
        let done = connect(&machine, &["cursor", "--url", url, "--yes"]);
        let expected = "did you mean http://127.0.0.1:8000/mcp?";
        assert!(done.code == 2 && done.err.contains(expected), "{done:?}");
    }
    let done = connect(&machine, &["cursor", "--url", "127.0.0.1:8000/mcp", "--yes"]);
    assert!(done.code == 2 && done.err.contains("127.0.0.1:8000/mcp"), "{done:?}");
    assert_eq!(fs::read_dir(machine.path("home")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(machine.path("app")).unwrap().count(), 1);
}

#[test]
fn a_key_from_standard_input_is_written() {
    let machine = machine();
    let url = "http://127.0.0.1:8000/mcp";
    let args = ["connect", "cursor", "--url", url, "--key", "-", "--yes"];
    let line = TestCommandLine::new(&machine.path("app"), &args).input("toolgate_abc\n");
    let done = line.env("HOME", machine.path("home")).run();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(machine.read("home/.cursor/mcp.json").contains("Bearer toolgate_abc"));
}

#[test]
fn nothing_is_written_without_a_terminal_or_yes_and_with_print() {
    let machine = machine().file(CURSOR.file, CURSOR.text);
    let done = connect(&machine, &["cursor"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("--yes") && done.out.contains("+    \"toolgate\": {"), "{done:?}");
    let done = connect_well(&machine, &["cursor", "--print"]);
    assert!(done.out.contains("+    \"toolgate\": {") && done.err.is_empty(), "{done:?}");
    assert_eq!(machine.read(CURSOR.file), CURSOR.text);
    assert!(!machine.path("state").exists());
}

#[test]
fn the_entry_of_a_connected_client_is_printed_on_request() {
    let machine = machine().file(CURSOR.file, CURSOR.text);
    connect_well(&machine, &["cursor", "--yes"]);
    let before = machine.read(CURSOR.file);
    let done = connect_well(&machine, &["cursor", "--print"]);
    assert!(done.err.contains("already connected"), "{done:?}");
    let entry = &parse(&done.out)["mcpServers"]["toolgate"];
    assert_eq!(entry["command"], binary().to_str().unwrap(), "{done:?}");
    assert_eq!(machine.read(CURSOR.file), before);
}

#[test]
fn the_person_at_the_terminal_decides() {
    for (answer, is_changed) in [("n\n", false), ("y\n", true)] {
        let machine = machine().file(CURSOR.file, CURSOR.text);
        let line = format!("{} connect cursor", binary().display());
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).current_dir(machine.path("app")).env_clear();
        command.env("PATH", path()).env("HOME", machine.path("home")).env("TERM", "xterm");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(answer.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(printed.contains("mcp.json? [y/N] "), "{printed}");
        assert_eq!(machine.read(CURSOR.file) != CURSOR.text, is_changed, "{printed}");
        drop(stdin);
    }
}

#[test]
fn invalid_settings_are_refused_with_the_line_and_never_changed() {
    for (client, file, text, expected) in [
        ("cursor", "app/.cursor/mcp.json", "{\n  \"mcpServers\": {", "line 2, column"),
        ("cursor", "app/.cursor/mcp.json", "{\n  \"a\": 1\n  \"b\": 2\n}", "line 2, column 9"),
        ("cursor", "app/.cursor/mcp.json", "[]", "not an object"),
        ("codex", "app/.codex/config.toml", "a = 1\nb = secret-1\n", "line 2, column 5"),
    ] {
        let machine = machine().file(file, text);
        for action in ["--yes", "--remove"] {
            let done = connect(&machine, &[client, action]);
            let is_refused = done.code == 2 && done.err.contains(expected);
            assert!(is_refused || (action == "--remove" && text == "[]"), "{done:?}");
            assert!(!done.err.contains("secret-1"), "{done:?}");
        }
        assert_eq!(machine.read(file), text);
    }
    let machine = machine().file("app/.cursor/mcp.json", b"\xff\xfe{\0}\0");
    let done = connect(&machine, &["cursor", "--yes"]);
    assert!(done.code == 2 && done.err.contains("is not UTF-8"), "{done:?}");
}

#[test]
fn links_are_followed_in_the_home_folder_and_kept_inside_a_project() {
    let machine = machine().file("dotfiles/mcp.json", CURSOR.text).file("home/.cursor/x", "");
    symlink("../../dotfiles/mcp.json", machine.path("home/.cursor/mcp.json")).unwrap();
    fs::set_permissions(machine.path("dotfiles/mcp.json"), fs::Permissions::from_mode(0o640))
        .unwrap();
    connect_well(&machine, &["cursor", "--scope", "user", "--yes"]);
    assert!(machine.path("home/.cursor/mcp.json").is_symlink());
    assert!(machine.read("dotfiles/mcp.json").contains("toolgate"));
    assert_eq!(fs::metadata(machine.path("dotfiles/mcp.json")).unwrap().mode() & 0o777, 0o640);
    connect_well(&machine, &["cursor", "--scope", "user", "--remove", "--yes"]);
    assert_eq!(machine.read("dotfiles/mcp.json"), CURSOR.text);
    assert_eq!(fs::read_dir(machine.path("dotfiles")).unwrap().count(), 1, "no other file is left");

    symlink("../dotfiles", machine.path("app/.cursor")).unwrap();
    let done = connect(&machine, &["cursor", "--yes"]);
    assert!(done.code == 2 && done.err.contains("leads out of the project"), "{done:?}");
    assert_eq!(machine.read("dotfiles/mcp.json"), CURSOR.text);
    symlink("nowhere", machine.path("app/.mcp.json")).unwrap();
    let done = connect(&machine, &["claude", "--yes"]);
    assert!(done.code == 2 && done.err.contains("broken link"), "{done:?}");
}

#[test]
fn removing_after_other_changes_takes_out_only_the_server() {
    let machine = machine().file(CURSOR.file, CURSOR.text);
    connect_well(&machine, &["cursor", "--yes"]);
    let changed = machine.read(CURSOR.file).replace("\"stdio\"", "\"stdio\", \"--read-only\"");
    fs::write(machine.path(CURSOR.file), changed).unwrap();
    connect_well(&machine, &["cursor", "--remove", "--yes"]);
    assert_eq!(parse(&machine.read(CURSOR.file)), parse(CURSOR.text));

    // A new file has nothing else by then.
    connect_well(&machine, &["claude", "--yes"]);
    let changed = machine.read("app/.mcp.json").replace("\"args\": [", "\"args\": [\"--log\", ");
    assert!(changed.contains("--log"), "{changed}");
    fs::write(machine.path("app/.mcp.json"), changed).unwrap();
    connect_well(&machine, &["claude", "--remove", "--yes"]);
    assert!(!machine.path("app/.mcp.json").exists());
}

#[test]
fn a_second_connection_replaces_the_first_and_an_older_entry_comes_back() {
    let text =
        "{\n  \"mcpServers\": {\n    \"toolgate\": { \"url\": \"http://old/mcp\" }\n  }\n}\n";
    let machine = machine().file(CURSOR.file, text).file("other/README.md", "");
    connect_well(&machine, &["cursor", "--yes"]);
    let url = ["--url", "https://new.example/mcp", "--scope", "project"];
    connect_well(&machine, &[&["cursor", "--yes"][..], &url[..]].concat());
    let connected = machine.read(CURSOR.file);
    assert!(connected.contains("new.example") && !connected.contains("stdio"), "{connected}");
    let done = connect_well(&machine, &["cursor", "--remove", "--yes"]);
    assert!(done.err.contains("which is restored"), "{done:?}");
    assert_eq!(machine.read(CURSOR.file), text);
    connect_well(&machine, &["cursor", "--remove", "--yes"]);
    assert_eq!(parse(&machine.read(CURSOR.file)), serde_json::json!({ "mcpServers": {} }));
}

#[test]
fn without_a_client_the_clients_on_this_machine_are_listed() {
    let machine = machine();
    let done = connect_well(&machine, &[]);
    assert!(done.out.is_empty() && done.err.contains("cursor"), "{done:?}");
    let machine = machine.file("home/.codex/config.toml", "").file("home/.config/zed/x", "");
    connect_well(&machine, &["cursor", "--yes"]);
    machine.put("app/.mcp.json", "{");
    let done = connect_well(&machine, &[]);
    let row = |client: &str| {
        let row = done.out.lines().find(|line| line.starts_with(client));
        row.unwrap_or_else(|| panic!("{client}: {done:?}")).to_owned()
    };
    assert!(row("cursor").contains("project  connected to /"), "{done:?}");
    assert!(row("codex").contains("user     not connected"), "{done:?}");
    assert!(row("zed").contains("not connected"), "{done:?}");
    assert!(row("claude").contains("unreadable: "), "{done:?}");
    assert!(!done.out.contains("windsurf"), "{done:?}");
}

#[test]
fn an_unknown_client_or_scope_is_refused_with_the_known_ones() {
    let machine = machine();
    let done = connect(&machine, &["cursr"]);
    assert!(done.code == 2 && done.err.contains("cursor"), "{done:?}");
    let done = connect(&machine, &["windsurf", "--scope", "project"]);
    assert!(done.code == 2 && done.err.contains("--scope user"), "{done:?}");
}

#[test]
fn a_new_connection_keeps_the_arguments_and_variables_that_the_user_added() {
    let machine = machine().file(CURSOR.file, CURSOR.text).file("other/README.md", "");
    connect_well(&machine, &["cursor", "--yes", "--read-only"]);
    let settings = parse(&machine.read(CURSOR.file));
    let app = machine.path("app").canonicalize().unwrap();
    let args = |settings: &Value| settings["mcpServers"]["toolgate"]["args"].clone();
    assert_eq!(args(&settings), serde_json::json!(["stdio", app, "--read-only"]));
    let again = connect_well(&machine, &["cursor"]);
    assert!(again.err.contains("already connected"), "{again:?}");
    assert!(again.err.contains("stays read-only"), "{again:?}");
    let listed = connect_well(&machine, &[]);
    assert!(listed.out.contains(", read-only"), "{listed:?}");
    // The project of the settings stays, and another program serves it.
    let mut changed = settings;
    changed["mcpServers"]["toolgate"]["env"] = serde_json::json!({ "TZ": "UTC" });
    changed["mcpServers"]["toolgate"]["command"] = "/old/toolgate".into();
    fs::write(machine.path(CURSOR.file), changed.to_string()).unwrap();
    let done = connect_well(&machine, &["cursor", "--yes"]);
    let note = "kept from the earlier entry: the arguments `--read-only`, `env`";
    assert!(done.err.contains(note), "{done:?}");
    let connected = parse(&machine.read(CURSOR.file));
    assert_eq!(args(&connected), serde_json::json!(["stdio", app, "--read-only"]));
    assert_eq!(connected["mcpServers"]["toolgate"]["env"]["TZ"], "UTC");
    assert_eq!(connected["mcpServers"]["toolgate"]["command"], binary().to_str().unwrap());
}

#[test]
fn a_connection_of_a_subfolder_says_that_the_rest_of_the_repository_is_not_served() {
    let machine = machine().file("home/.git/HEAD", "");
    assert!(!connect_well(&machine, &["cursor", "--yes"]).err.contains("subfolder"));
    let machine = machine.file(".git/HEAD", "");
    let done = connect_well(&machine, &["claude", "--yes"]);
    let top = machine.root().canonicalize().unwrap();
    let expected = format!("a subfolder of the git repository {}", top.display());
    assert!(done.err.contains(&expected), "{done:?}");
}
