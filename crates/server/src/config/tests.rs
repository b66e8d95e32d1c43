//! Which value holds, and what is refused.
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
    let loaded = from(file, &[("TOOLGATE_LIMITS_CALLS", "9")]).expect("sound");
    assert_eq!(loaded.config.limits.calls, 9);
    assert_eq!(loaded.config.limits.programs, 4);
    assert_eq!(loaded.config.limits.page_size, 200);
}

#[test]
fn a_misspelled_setting_is_refused_with_its_line() {
    let err = format!("{:#}", from("[server]\nlisten_at = 1\n", &[]).err().expect("refused"));
    assert!(err.contains("listen_at") && err.contains("line 2"), "{err}");
}

#[test]
fn a_misspelled_variable_is_told_with_the_nearest() {
    let loaded = from("", &[("TOOLGATE_LIMIT_CALLS", "9")]).expect("sound");
    assert!(loaded.warnings[0].contains("TOOLGATE_LIMITS_CALLS"), "{:?}", loaded.warnings);
}

#[test]
fn a_variable_of_the_wrong_type_is_named() {
    let err = from("", &[("TOOLGATE_LIMITS_CALLS", "many")]).err().expect("refused");
    assert!(format!("{err:#}").contains("TOOLGATE_LIMITS_CALLS is `many`"), "{err:#}");
}

#[test]
fn an_address_beyond_loopback_needs_a_credential_and_encryption() {
    let server = ServerSection::default();
    let tls = ServerSection { tls_certificate: Some("/c".into()), ..server.clone() };
    let proxied = ServerSection { plaintext: true, ..server.clone() };
    let told = |addr: &str, server: &ServerSection, asks| {
        let told = check_reach(addr.parse().expect("an address"), server, asks);
        told.err().map(|err| err.to_string()).unwrap_or_default()
    };
    for beyond in ["0.0.0.0:8000", "[::]:8000", "192.0.2.1:8000", "[::ffff:192.0.2.1]:8000"] {
        for server in [&server, &tls, &proxied] {
            assert!(told(beyond, server, false).contains("no credential is configured"));
        }
        assert!(told(beyond, &server, true).contains("come unencrypted"), "{beyond}");
        for server in [&tls, &proxied] {
            assert_eq!(told(beyond, server, true), "", "{beyond}");
        }
    }
    for here in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:8000", "[::ffff:127.0.0.1]:8000"] {
        assert_eq!(told(here, &server, false), "", "{here}");
    }
}

#[test]
fn half_of_what_tls_needs_is_refused() {
    for (set, told) in [
        ("tls_key = \"/key.pem\"", "server.tls_certificate is missing"),
        ("tls_certificate = \"/cert.pem\"", "server.tls_key is missing"),
        ("tls_key = \"key.pem\"", "give an absolute path"),
        ("keys_file = \"keys.toml\"", "give an absolute path"),
    ] {
        let err = format!("{:#}", from(&format!("[server]\n{set}\n"), &[]).err().expect("refused"));
        assert!(err.contains(told), "{err}");
    }
}

#[test]
fn a_bound_of_nothing_or_beyond_all_use_is_refused_by_name() {
    for (text, told) in [
        ("[server]\nkeep_alive_ms = 0\n", "it may be 1 to"),
        ("[limits]\ncalls = 9223372036854775807\n", "it may be 1 to"),
        ("[limits]\ncalls_each = 9223372036854775807\n", "limits.calls_each"),
        ("[limits]\nprograms_each = 9223372036854775807\n", "limits.programs_each"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect("refused"));
        assert!(err.contains(told), "{err}");
    }
}

#[test]
fn what_protects_nothing_is_refused() {
    for odd in ["infra/*", "*.tf", "../x", "", "/"] {
        let text = format!("[files]\nprotected = [{odd:?}]\n");
        let err = format!("{:#}", from(&text, &[]).err().expect("refused"));
        assert!(err.contains("no patterns"), "{err}");
    }
    for sound in ["infra", "infra/", "/infra", ".env", "a/b.toml"] {
        from(&format!("[files]\nprotected = [{sound:?}]\n"), &[]).expect("it is sound");
    }
}

#[test]
fn every_setting_has_a_meaning() {
    for setting in settings() {
        assert!(setting.schema["description"].is_string(), "{:?}", setting.path);
    }
}

#[test]
fn a_name_that_nobody_could_know_a_server_by_is_refused() {
    for name in ["tools", "com.example/", "com.example/a b", "/tools", "com.example/a/b"] {
        let text = format!("[server]\ncard = \"{name}\"\n");
        let err = format!("{:#}", from(&text, &[]).err().expect("refused"));
        assert!(err.contains("server.card") && err.contains("com.example/tools"), "{err}");
    }
    from("[server]\ncard = \"com.example/my_tools\"\n", &[]).expect("sound");
}

#[test]
fn a_setting_that_could_not_hold_is_refused_by_name() {
    for (text, told) in [
        ("[server]\nurl = \"tools.example/mcp\"", "server.url is `tools.example/mcp`"),
        ("[server]\nurl = \"https://tools.example\"", "such as `https://tools.example/mcp`"),
        ("[server]\nurl = \"ftp://tools.example/mcp\"", "server.url"),
        ("[exec]\nconfirm = [\"rm\", \" \"]", "exec.confirm has ` `"),
        ("[exec]\nconfirm = [\"bin/rm\"]", "exec.confirm has `bin/rm`"),
        ("[prompts]\nfolder = \"../x\"", "prompts.folder"),
        ("[skills]\nfolders = [\"/x\"]", "skills.folders"),
        ("[assets]\nschemas = \"/x\"", "assets.schemas"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(told), "{text}: {err}");
    }
    from("[server]\nurl = \"https://tools.example/a/mcp\"", &[]).expect("sound");
    from("[exec]\nconfirm = [\"/usr/bin/rm\", \"git push\"]", &[]).expect("sound");
}

#[test]
fn a_setting_of_another_type_is_told_what_it_must_be() {
    for (text, told) in [
        (
            "[files]\nconfirm_folders = true",
            "files.confirm_folders must be one of when_able, always, never",
        ),
        ("tools = 3", "`tools` must be a table, `[tools]`"),
        ("[exec]\nshell = \"no\"", "exec.shell must be true or false"),
        ("[tools]\nallow = \"files.*\"", "tools.allow must be a list of texts"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(told) && err.contains("line"), "{text}: {err}");
    }
    let err = from("", &[("TOOLGATE_EXEC_SHELL", "no")]).err().expect("refused");
    assert_eq!(format!("{err:#}"), "TOOLGATE_EXEC_SHELL is `no`; it must be true or false");
}

#[test]
fn a_list_of_tables_is_in_the_reference_and_no_variable_says_it() {
    let page = reference();
    for told in ["## [[listen]]", "## [[keys]]", "### `sha256`", "must be said"] {
        assert!(page.contains(told), "{told}");
    }
    assert!(!page.contains("TOOLGATE_KEYS"), "{page}");
    assert!(schema()["properties"]["keys"]["items"]["properties"]["sha256"].is_object());
}

#[test]
fn a_key_is_read_from_the_file_and_from_zyra_s_environment_as_its_digest() {
    let ci = ApiKey::from_secret("ci", "a");
    let file = format!("[[keys]]\nname = \"ci\"\nsha256 = \"{}\"\n", ci.sha256);
    let env = [("ZYRA_API_KEY", "devkey"), ("DATAVIZHUB_API_KEY", "old")];
    let config = from(&file, &env).expect("sound").config;
    assert_eq!(config.keys, [ci, ApiKey::from_secret("zyra", "devkey")]);
    assert!(!format!("{config:?}").contains("devkey"));
    for (text, told) in [
        ("[[keys]]\nname = \"ci\"\nkey = \"devkey\"\n", "line 3"),
        ("[[keys]]\nname = \"ci\"\nsha256 = \"devkey\"\n", "`toolgate key ci`"),
        ("[server]\nkey_headers = [\"a b\"]\n", "server.key_headers"),
    ] {
        let err = format!("{:#}", from(text, &[]).err().expect(text));
        assert!(err.contains(told), "{text}: {err}");
    }
}
