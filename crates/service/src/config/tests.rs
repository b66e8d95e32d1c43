//! Tests of the precedence of settings, and of errors about invalid settings.
#![allow(clippy::disallowed_methods, reason = "a test writes the file that is read")]

use std::ffi::OsString;

use super::load::*;
use super::setting::settings;
use super::*;

fn from(text: &str, env: &[(&str, &str)]) -> anyhow::Result<LoadedConfig> {
    let folder = std::env::temp_dir().join(format!("toolgate-config-{:x}", rand()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(SETTINGS_FILE_NAME);
    std::fs::write(&file, text)?;
    let env: Vec<_> = env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect();
    let loaded = load(&folder, Some(&file), &env);
    std::fs::remove_dir_all(&folder)?;
    loaded
}

fn rand() -> u64 {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).expect("randomness");
    u64::from_le_bytes(bits)
}

#[test]
fn the_environment_overrides_the_file_and_the_file_the_default() {
    let file = "[limits]\ncalls = 3\nprograms = 4\n";
    let loaded = from(file, &[("TOOLGATE_LIMITS_CALLS", "9")]).expect("valid");
    assert_eq!(loaded.config.limits.calls, 9);
    assert_eq!(loaded.config.limits.programs, 4);
    assert_eq!(loaded.config.limits.wait_ms, 30_000);
}

#[test]
fn the_form_of_results_has_a_short_variable() {
    let short = ("TOOLGATE_RESULTS", "both");
    for (env, expected) in [
        (vec![short], ToolResultFormat::Both),
        (vec![short, ("TOOLGATE_SERVER_RESULTS", "structured")], ToolResultFormat::Structured),
    ] {
        let LoadedConfig { config, warnings, .. } = from("", &env).expect("valid");
        assert_eq!((config.server.results, warnings.len()), (expected, 0), "{warnings:?}");
    }
    let err = format!("{:#}", from("", &[("TOOLGATE_RESULTS", "json")]).err().expect("refused"));
    let start = "in TOOLGATE_RESULTS: unknown variant `json`, expected ";
    assert!(err.starts_with(start) && err.ends_with(" in `server.results`"), "{err}");
}

#[test]
fn a_misspelled_name_in_a_variable_is_refused_with_its_setting() {
    let embedder = "url=http://127.0.0.1:1,model=m,dimension=2";
    let err = from("", &[("TOOLGATE_SEARCH_EMBEDDER", embedder)]).err().expect("refused");
    let err = format!("{err:#}");
    let start = "in TOOLGATE_SEARCH_EMBEDDER: unknown field `dimension`, expected ";
    assert!(err.starts_with(start) && err.ends_with(" in `search.embedder`"), "{err}");
}

#[test]
fn a_misspelled_setting_is_refused_with_its_line() {
    let err = format!("{:#}", from("[server]\nlisten_at = 1\n", &[]).err().expect("refused"));
    assert!(err.contains("listen_at") && err.contains("line 2"), "{err}");
}

#[test]
fn a_misspelled_variable_gets_a_warning_with_the_nearest_name() {
    let loaded = from("", &[("TOOLGATE_LIMIT_CALLS", "9")]).expect("valid");
    assert!(loaded.warnings[0].contains("TOOLGATE_LIMITS_CALLS"), "{:?}", loaded.warnings);
}

#[test]
fn a_variable_of_the_wrong_type_is_refused_by_name() {
    let err = from("", &[("TOOLGATE_LIMITS_CALLS", "many")]).err().expect("refused");
    assert!(format!("{err:#}").contains("TOOLGATE_LIMITS_CALLS is `many`"), "{err:#}");
}

#[test]
fn an_address_beyond_loopback_needs_a_credential_and_encryption() {
    let server = ServerSection::default();
    let tls = ServerSection { tls_certificate: Some("/c".into()), ..server.clone() };
    let proxied = ServerSection { plaintext: true, ..server.clone() };
    let refusal = |addr: &str, server: &ServerSection, requires_credential| {
        let checked = check_reach(addr.parse().expect("an address"), server, requires_credential);
        checked.err().map(|err| err.to_string()).unwrap_or_default()
    };
    for public in ["0.0.0.0:8000", "[::]:8000", "192.0.2.1:8000", "[::ffff:192.0.2.1]:8000"] {
        for server in [&server, &tls, &proxied] {
            assert!(refusal(public, server, false).contains("no credential is configured"));
        }
        assert!(refusal(public, &server, true).contains("be unencrypted"), "{public}");
        for server in [&tls, &proxied] {
            assert_eq!(refusal(public, server, true), "", "{public}");
        }
    }
    for loopback in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:8000", "[::ffff:127.0.0.1]:8000"] {
        assert_eq!(refusal(loopback, &server, false), "", "{loopback}");
    }
}

#[test]
fn incomplete_tls_settings_and_relative_paths_are_refused() {
    for (set, expected) in [
        ("tls_key = \"/key.pem\"", "server.tls_certificate is missing"),
        ("tls_certificate = \"/cert.pem\"", "server.tls_key is missing"),
        ("tls_key = \"key.pem\"", "write an absolute path"),
        ("keys_file = \"keys.toml\"", "write an absolute path"),
    ] {
        let err = format!("{:#}", from(&format!("[server]\n{set}\n"), &[]).err().expect("refused"));
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn a_limit_out_of_range_is_refused_by_name() {
    for (text, expected) in [
        ("[server]\nconnections_max = 0\n", "it must be 1 to"),
        ("[limits]\ncalls = 9223372036854775807\n", "it must be 1 to"),
        ("[limits]\nprograms = 9223372036854775807\n", "limits.programs"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect("refused"));
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn a_protected_path_must_be_a_name_or_path_without_patterns() {
    for invalid in ["infra/*", "*.tf", "../x", "", "/", "!", "!.v*"] {
        let text = format!("[files]\nprotected = [{invalid:?}]\n");
        let err = format!("{:#}", from(&text, &[]).err().expect("refused"));
        assert!(err.contains("no patterns"), "{err}");
    }
    for valid in ["infra", "infra/", "/infra", ".env", "a/b.toml", "!.vscode"] {
        from(&format!("[files]\nprotected = [{valid:?}]\n"), &[]).expect("it is valid");
    }
}

#[test]
fn every_setting_has_a_description() {
    for setting in settings() {
        assert!(setting.schema["description"].is_string(), "{:?}", setting.path);
    }
}

#[test]
fn a_wrong_value_in_a_list_of_tables_is_refused_in_the_words_of_the_file() {
    let rule = "[[sandbox.for]]\ntools = \"exec.run\"\nprofile = ";
    for (text, expected) in [
        (
            format!("{rule}\"netwrk\""),
            "`netwrk` is not a value of this setting; did you mean `network`?",
        ),
        (format!("{rule}\"workspace\"\nhosts = \"a.example\""), "write a list, such as `["),
        (
            "[[limits.rate]]\ntools = \"exec.*\"\ncalls = \"5\"".to_owned(),
            "write a whole number, without quotes",
        ),
    ] {
        let err = format!("{:#}", from(&text, &[]).err().expect(&text));
        assert!(err.contains(expected) && err.contains("line"), "{text}: {err}");
    }
}

#[test]
fn an_unknown_name_is_refused_with_a_similar_known_one() {
    for (text, expected) in [
        ("[servr]\nlisten = \"127.0.0.1:1\"", "`servr` is not a setting; did you mean `server`?"),
        ("[tool]\ndeny = []", "`tool` is not a setting; did you mean `tools`?"),
        ("[tools]\ndenny = []", "`tools.denny` is not a setting; did you mean `deny`?"),
        ("[[listen]]\nadr = \"1\"", "`listen.adr` is not a setting; did you mean `addr`?"),
        ("[zzzz]", "`zzzz` is not a setting: "),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(expected) && err.contains("line"), "{text}: {err}");
        let has_suggestion = expected.contains("did you mean");
        assert_eq!(err.contains("unknown field"), !has_suggestion, "{text}: {err}");
    }
}

#[test]
fn an_invalid_value_is_refused_with_its_setting() {
    for (text, expected) in [
        ("[server]\nurl = \"tools.example/mcp\"", "server.url is `tools.example/mcp`"),
        ("[server]\nurl = \"https://tools.example\"", "such as `https://tools.example/mcp`"),
        ("[server]\nurl = \"ftp://tools.example/mcp\"", "server.url"),
        ("[exec]\nconfirm = [\"rm\", \" \"]", "` ` in exec.confirm"),
        ("[exec]\nconfirm = [\"bin/rm\"]", "`bin/rm` in exec.confirm"),
        ("[prompts]\nfolder = \"../x\"", "prompts.folder"),
        (
            "[[listen]]\naddr = \"127.0.0.1:3333\"\ndialect = \"envelope\"\n[[listen]]\naddr = \
             \"127.0.0.1:3333\"\ndialect = \"mcp\"",
            "of envelope and mcp have the same address, 127.0.0.1:3333",
        ),
        ("[skills]\nfolders = [\"/x\"]", "skills.folders"),
        ("[assets]\nschemas = \"/x\"", "assets.schemas"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(expected), "{text}: {err}");
    }
    from("[server]\nurl = \"https://tools.example/a/mcp\"", &[]).expect("valid");
    from("[exec]\nconfirm = [\"/usr/bin/rm\", \"git push\"]", &[]).expect("valid");
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_the_expected_type() {
    for (text, expected) in [
        (
            "[files]\nconfirm_folders = true",
            "files.confirm_folders must be one of when_able, always, never",
        ),
        ("tools = 3", "`tools` must be a table, `[tools]`"),
        ("[server]\nconfined = \"no\"", "server.confined must be true or false"),
        ("[tools]\nallow = \"files.*\"", "tools.allow must be a list of strings"),
        (
            "[listen]\naddr = \"1\"",
            "`listen` is a list of tables: write `[[listen]]`, not `[listen]`",
        ),
        ("[keys]\nname = \"a\"", "write `[[keys]]`, not `[keys]`"),
        ("[policy.rules]\nname = \"a\"", "write `[[policy.rules]]`, not `[policy.rules]`"),
        ("limits.rate = 1", "`limits.rate` is a list of tables: write `[[limits.rate]]`"),
        ("[[policy]]\nrules = []", "`policy` must be a table, `[policy]`"),
        ("[upstream]\nurl = \"a\"", "each table of `upstream` has a name: write `[upstream.NAME]`"),
        ("[[upstream]]\nurl = \"a\"", "write `[upstream.NAME]`"),
        (
            "[[command]]\nabout = \"a\"",
            "each table of `command` has a name: write `[command.NAME]`",
        ),
        (
            "[[sandbox.for]]\ntools = \"exec.run\"\nhosts = [\"a.example\"]",
            "`profile` is missing in a `[[sandbox.for]]` table; write `read-only`",
        ),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(expected) && err.contains("line"), "{text}: {err}");
    }
    let err = from("", &[("TOOLGATE_SERVER_CONFINED", "no")]).err().expect("refused");
    assert_eq!(format!("{err:#}"), "TOOLGATE_SERVER_CONFINED is `no`; it must be true or false");
}

#[test]
fn a_list_of_tables_is_in_the_reference_and_has_no_variable() {
    let page = reference();
    for part in ["## [[listen]]", "## [[keys]]", "### `sha256`", "none; required"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("TOOLGATE_KEYS"), "{page}");
    assert!(schema()["properties"]["keys"]["items"]["properties"]["sha256"].is_object());
}

#[test]
fn keys_come_from_the_file_and_from_zyra_s_variables_as_digests() {
    let ci = ApiKey::from_secret("ci", "a");
    let file = format!("[[keys]]\nname = \"ci\"\nsha256 = \"{}\"\n", ci.sha256);
    let env = [("ZYRA_API_KEY", "devkey"), ("DATAVIZHUB_API_KEY", "old")];
    let config = from(&file, &env).expect("valid").config;
    assert_eq!(config.keys, [ci, ApiKey::from_secret("zyra", "devkey")]);
    assert!(!format!("{config:?}").contains("devkey"));
    for (text, expected) in [
        ("[[keys]]\nname = \"ci\"\nkey = \"devkey\"\n", "line 3"),
        (
            "[[keys]]\nname = \"ci\"\nsha256 = \"\"\nmade = \"2026-01-31T12:00:00Z\"\n",
            "unknown field `made`",
        ),
        ("[[keys]]\nname = \"ci\"\nsha256 = \"devkey\"\n", "`toolgate key ci`"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(expected), "{text}: {err}");
    }
    let err = from("", &[("ZYRA_API_KEY_HEADER", "a b")]).err().expect("refused");
    assert!(err.to_string().contains("`a b` is not a valid header name"), "{err:#}");
}
