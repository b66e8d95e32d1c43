//! Tests of the conversion of clients' settings into upstream tables.

use serde_json::json;

use super::*;

/// Converts `server`, an entry of a client's settings, to the upstream `name`. `secrets` has the
/// secrets of earlier entries, by environment variable.
fn read(
    name: &str,
    server: &Value,
    secrets: &SecretsByVariable,
) -> Result<ImportedUpstream, String> {
    ImportedUpstream::new(name.to_owned(), secrets.clone()).read(server, Path::new("/"))
}

#[track_caller]
fn check(server: &Value, table: &str, notes: &[&str]) {
    let upstream = read("git_hub", server, &SecretsByVariable::new()).unwrap();
    assert_eq!(upstream.table, table.parse::<Table>().unwrap());
    assert_eq!(upstream.notes, notes);
}

#[test]
fn the_settings_of_each_client_become_an_upstream_table() {
    check(
        &json!({ "command": "npx", "args": ["-y", "x", "${workspaceFolder}/a", "${userHome}"],
                "env": { "LEVEL": "debug", "HOST": "${env:HOST}" } }),
        "command = ['npx', '-y', 'x', './a', '${HOME}']\ncwd = '.'\n\
         env = { LEVEL = 'debug', HOST = '${HOST}' }",
        &[],
    );
    check(
        &json!({ "command": { "path": "x", "args": ["y"], "env": { "A": 1 } }, "settings": {} }),
        "command = ['x', 'y']\nenv = { A = '1' }",
        &[],
    );
    check(
        &json!({ "type": "http", "url": "https://a.example/mcp", "disabled": true }),
        "url = 'https://a.example/mcp'\nenabled = false",
        &[],
    );
    check(
        &json!({ "url": "https://a.example/sse/" }),
        "url = 'https://a.example/sse/'\ntransport = 'sse'",
        &[],
    );
}

#[test]
fn a_secret_becomes_a_reference_to_a_variable() {
    check(
        &json!({ "command": "x", "env": { "GITHUB_TOKEN": "ghp_1", "API_KEY": "${KEY:-k}" } }),
        "command = ['x']\nenv = { GITHUB_TOKEN = '${GITHUB_TOKEN}', API_KEY = '${KEY}' }",
        &[
            "set the variable `GITHUB_TOKEN` for toolgate: the value of `GITHUB_TOKEN` was not copied",
            "set the variable `KEY`; the client's default was `k`",
        ],
    );
    check(
        &json!({ "url": "https://a/mcp", "headers": { "Authorization": "Bearer s3cret" } }),
        "url = 'https://a/mcp'\n\
         headers = { Authorization = 'Bearer ${GIT_HUB_AUTHORIZATION}' }",
        &[
            "set the variable `GIT_HUB_AUTHORIZATION` for toolgate: the value of `Authorization` was \
           not copied",
        ],
    );
    check(
        &json!({ "url": "https://a/mcp", "headers": { "X-Key": "${input:the-key}" } }),
        "url = 'https://a/mcp'\nheaders = { X-Key = '${THE_KEY}' }",
        &["set the variable `THE_KEY` for toolgate"],
    );
}

#[test]
fn a_secret_in_an_argument_a_url_or_any_variable_is_not_copied() {
    check(
        &json!({ "command": "x", "args": ["--api-key", "s3cret", "-e", "B_TOKEN=s3cret"],
                "env": { "DATABASE_URL": "postgres://ann:s3cret@db/x", "LEVEL": "debug",
                         "OF_GH": "0123456789abcdef0123456789abcdef" } }),
        "command = ['x', '--api-key', '${GIT_HUB_API_KEY}', '-e', 'B_TOKEN=${B_TOKEN}']\n\
         env = { DATABASE_URL = '${DATABASE_URL}', LEVEL = 'debug', OF_GH = '${OF_GH}' }",
        &[
            "set the variable `GIT_HUB_API_KEY` for toolgate: the value of `api-key` \
             was not copied",
            "set the variable `B_TOKEN` for toolgate: the value of `B_TOKEN` was not \
             copied",
            "set the variable `DATABASE_URL` for toolgate: the value of \
             `DATABASE_URL` was not copied",
            "set the variable `OF_GH` for toolgate: the value of `OF_GH` was not \
             copied",
        ],
    );
    check(
        &json!({ "url": "https://a.example/mcp?token=one&key=two" }),
        "url = 'https://a.example/mcp?token=${GIT_HUB_TOKEN}&key=${GIT_HUB_KEY}'",
        &[
            "set the variable `GIT_HUB_TOKEN` for toolgate: the value of `token` was \
             not copied",
            "set the variable `GIT_HUB_KEY` for toolgate: the value of `key` was not \
             copied",
        ],
    );
    check(
        &json!({ "command": "x", "args": ["--token", "one", "--token", "two"] }),
        "command = ['x', '--token', '${GIT_HUB_TOKEN}', '--token', '${GIT_HUB_TOKEN_2}']",
        &[
            "set the variable `GIT_HUB_TOKEN` for toolgate: the value of `token` was \
             not copied",
            "set the variable `GIT_HUB_TOKEN_2` for toolgate: the value of `token` \
             was not copied",
        ],
    );
}

#[test]
fn an_entry_that_is_not_a_server_is_refused_with_the_reason() {
    let itself = json!({ "command": "/usr/bin/toolgate", "args": ["stdio"] });
    for (entry, expected) in
        [(json!({}), "neither"), (json!("npx x"), "not a table"), (itself, "toolgate itself")]
    {
        let why = read("x", &entry, &SecretsByVariable::new()).err();
        assert!(why.unwrap().contains(expected));
    }
}

#[test]
fn unusual_entries_are_imported_if_their_meaning_is_clear() {
    check(
        &json!({ "command": "${workspaceFolder}/s", "cwd": "${workspaceFolder}/sub",
                "args": ["--port", 8080, true, ["x"]], "env": { "A": null } }),
        "command = ['//s', '--port', '8080', 'true']\ncwd = './sub'",
        &["argument `[\"x\"]` is not imported"],
    );
    check(
        &json!({ "enabled": false, "command": { "path": "x" } }),
        "command = ['x']\nenabled = false",
        &[],
    );
}

#[test]
fn two_servers_with_different_values_for_one_variable_get_one_variable_each() {
    let mut secrets = SecretsByVariable::new();
    let mut token = |name: &str, value: &str| {
        let server = json!({ "command": "x", "env": { "DB_PASS": value } });
        let upstream = read(name, &server, &secrets).unwrap();
        secrets.clone_from(&upstream.secrets);
        upstream.table["env"]["DB_PASS"].as_str().unwrap().to_owned()
    };
    assert_eq!(token("work", "one"), "${DB_PASS}");
    assert_eq!(token("home", "two"), "${HOME_DB_PASS}");
    assert_eq!(token("again", "one"), "${DB_PASS}");
}

#[test]
fn servers_are_found_at_the_place_of_each_client() {
    let one = json!({ "a": { "command": "x" } });
    for content in [
        json!({ "mcpServers": one }),
        json!({ "servers": one, "inputs": [] }),
        json!({ "context_servers": one }),
        json!({ "mcp": { "servers": one } }),
        json!({ "mcp_servers": one, "model": "o3" }),
        json!({ "projects": { "/": { "mcpServers": one } } }),
    ] {
        let found = servers(&content, Path::new("/"));
        assert!(found.len() == 1 && found[0].0 == "a", "{content}");
    }
}

#[test]
fn filters_of_tools_become_settings_of_the_upstream() {
    check(
        &json!({ "command": "x", "includeTools": ["read", "list"], "excludeTools": ["list"] }),
        "command = ['x']\ntools = ['read', 'list', '!list']",
        &[],
    );
    check(
        &json!({ "url": "https://a/mcp", "enabled_tools": [], "disabled_tools": ["b"] }),
        "url = 'https://a/mcp'\ntools = []",
        &[],
    );
    check(
        &json!({ "command": "x", "disabledTools": ["b", 7], "excludeTools": ["c"], "tools": ["*"] }),
        "command = ['x']\ntools = ['*', '!c', '!b']",
        &["`disabledTools` is not imported"],
    );
    check(
        &json!({ "command": "x", "isActive": false,
                "tools": { "a": true, "b": false, "c": { "disabled": true }, "d": { "enabled": false } } }),
        "command = ['x']\nenabled = false\ntools = ['!b', '!c', '!d']",
        &[],
    );
    check(
        &json!({ "command": "x", "includeTools": ["!a"], "excludeTools": ["!b"] }),
        "command = ['x']\ntools = []",
        &["`includeTools` is not imported"],
    );
    check(
        &json!({ "command": "x", "excludeTools": ["!b"] }),
        "command = ['x']\ntools = ['!!b']",
        &[],
    );
}

#[test]
fn settings_of_codex_are_converted_by_their_meaning() {
    check(
        &json!({ "command": "x", "env_vars": ["A", { "name": "B", "source": "remote" }],
                "startup_timeout_sec": 2.5, "tool_timeout_sec": 60, "enabled": false }),
        "command = ['x']\nenabled = false\nstart_ms = 2500\ndeadline_ms = 60000\n\
         keep_env = ['PATH', 'HOME', 'LANG', 'TERM', 'TMPDIR', 'USER', 'HTTP_PROXY', 'HTTPS_PROXY', \
         'NO_PROXY', 'http_proxy', 'https_proxy', 'no_proxy', 'SSL_CERT_FILE', 'SSL_CERT_DIR', \
         'NODE_EXTRA_CA_CERTS', 'REQUESTS_CA_BUNDLE', 'A', 'B']",
        &[],
    );
    check(
        &json!({ "url": "https://a/mcp", "bearer_token_env_var": "A_TOKEN",
                "http_headers": { "X-Team": "b" }, "env_http_headers": { "X-Key": "A_KEY" },
                "tools": { "rm": { "approval_mode": "approve" } }, "required": true }),
        "url = 'https://a/mcp'\nheaders = { X-Team = 'b', X-Key = '${A_KEY}', \
         Authorization = 'Bearer ${A_TOKEN}' }",
        &["`tools` is not imported", "`required` is not imported"],
    );
}

#[test]
fn a_setting_that_is_not_imported_is_named_unless_it_says_nothing() {
    check(
        &json!({ "type": "streamableHttp", "url": "https://a/sse", "timeout": 60, "trust": false,
                "autoApprove": [], "alwaysAllow": ["rm"], "cwd": "/x", "description": "It.",
                "autoStart": false, "disabled": "False", "excludeTools": "rm" }),
        "url = 'https://a/sse'",
        &[
            "`timeout` is not imported",
            "`alwaysAllow` is not imported",
            "`cwd` is not imported",
            "`autoStart` is not imported",
            "`excludeTools` is not imported",
        ],
    );
    check(
        &json!({ "command": "x", "envFile": ".env", "oauth": { "scopes": [] }, "headers": { "A": "b" } }),
        "command = ['x']",
        &["`envFile` is not imported", "`oauth` is not imported", "`headers` is not imported"],
    );
}

#[test]
fn a_variable_without_braces_is_a_reference() {
    check(
        &json!({ "command": "x", "env": { "API_KEY": "$MY_KEY", "COST": "$5a" } }),
        "command = ['x']\nenv = { API_KEY = '${MY_KEY}', COST = '$5a' }",
        &[],
    );
}

#[test]
fn servers_of_a_client_that_are_off_or_partly_denied_stay_so() {
    let content = json!({ "mcp": { "excluded": ["a"] },
        "permissions": { "deny": ["mcp__a__rm"] } });
    let filters = ClientSettingsFilters::read(std::iter::once(&content), Path::new("/"));
    let server = json!({ "command": "x", "excludeTools": ["b"] });
    let mut upstream = read("a", &server, &SecretsByVariable::new()).unwrap();
    upstream.apply_filters("a", &filters);
    let expected = "command = ['x']\nenabled = false\ntools = ['!b', '!rm']";
    assert_eq!(upstream.table, expected.parse::<Table>().unwrap());
}

#[test]
fn names_in_any_script_stay_distinct() {
    let mut names =
        ImportedUpstreamNames { known: vec!["known".to_owned()], imported: BTreeMap::new() };
    let mut named = |name: &str| {
        let found = names.find_free(name);
        if let Some(found) = &found {
            names.imported.insert(found.clone(), name.to_owned());
        }
        found
    };
    for (name, expected) in [
        ("Git Hub", Some("git_hub")),
        ("git-hub", Some("git_hub_2")),
        ("Git Hub", None),
        ("known", None),
        ("Büro", Some("b_ufc_ro")),
        ("бюро", Some("u431_u44e_u440_u43e")),
        ("бюрo", Some("u431_u44e_u440_o")),
        ("🦀", Some("u1f980")),
        ("", Some("_")),
    ] {
        assert_eq!(named(name).as_deref(), expected, "{name}");
    }
}
