//! Tests of `toolgate trust`, which lets toolgate use the configuration in a folder.

use std::fs;

use super::*;
use crate::support::TempWorkspace;

const WIDENS: &str = "# a comment\n[sandbox]\nprofile = \"off\"\n\n[command.\"a.b\"]\nabout = \"a\"\nargv = [\"true\"]\nprogram = \"true\"\n";

/// Runs `toolgate` with `args` in a workspace whose settings file `--config` does not name.
fn run_without_config(
    workspace: &TempWorkspace,
    home: &TempDir,
    args: &[&str],
) -> CliCommandResult {
    let mut line = TestCommandLine::new(workspace.root(), args).env("HOME", home.path());
    line.command.env_remove("TOOLGATE_CONFIG");
    line.run()
}

#[test]
fn an_untrusted_file_is_refused_with_its_settings() {
    let workspace = TempWorkspace::new().file("toolgate.toml", WIDENS);
    let home = TempDir::new().unwrap();
    let call = ["call", "exec_run", "{\"command\":\"true\"}"];
    for args in [&["serve", "."][..], &["stdio"], &["tools"], &call] {
        let done = run_without_config(&workspace, &home, args);
        assert_eq!(done.code, 2, "{done:?}");
        for part in
            ["`sandbox.profile` in line 3", "`command.\"a.b\"` in line 5", "`toolgate trust .`"]
        {
            assert!(done.err.contains(part), "{args:?}: {done:?}");
        }
    }
}

#[test]
fn an_untrusted_file_is_checked_and_explained_without_its_secrets() {
    let settings = format!("{WIDENS}[secrets]\nvalues_from = [\"DEPLOY_TOKEN\"]\n");
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let home = TempDir::new().unwrap();
    let check = || run_without_config(&workspace, &home, &["check-config"]);
    let checked = check();
    assert_eq!(checked.code, 0, "{checked:?}");
    for part in [
        "is not trusted yet",
        "`sandbox.profile` in line 3, `command.\"a.b\"` in line 5",
        "`toolgate trust .`",
        "`DEPLOY_TOKEN` of secrets.values_from is not set",
        "toolgate.toml is valid",
    ] {
        assert!(checked.err.contains(part), "{part}: {checked:?}");
    }
    assert!(checked.out.contains("profile = \"off\""), "{checked:?}");
    let explain = ["policy", "explain", "local", "exec_run", "{\"command\":\"ls\"}"];
    let explained = run_without_config(&workspace, &home, &explain);
    assert!(explained.code == 0 && explained.out.contains("allowed"), "{explained:?}");
    assert!(explained.err.contains("is not trusted yet"), "{explained:?}");
    assert_eq!(run_without_config(&workspace, &home, &["trust"]).code, 0);
    assert!(!check().err.contains("is not trusted yet"));
}

#[test]
fn the_check_of_an_untrusted_file_reports_an_error_before_the_missing_trust() {
    let rule = "[[policy.rules]]\nname = \"a\"\neffect = \"allow\"\ntools = [\"filse.*\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", format!("{WIDENS}{rule}"));
    let home = TempDir::new().unwrap();
    let checked = run_without_config(&workspace, &home, &["check-config"]);
    assert_eq!(checked.code, 2, "{checked:?}");
    assert!(checked.err.contains("did you mean `files.*`? (line "), "{checked:?}");
    assert!(!checked.err.contains("is not trusted yet"), "{checked:?}");
}

#[test]
fn an_invalid_file_is_not_trusted() {
    for (settings, why) in [
        ("[sandbox]\nprofil = \"off\"\n", "profil"),
        ("[tools]\ndeny = [\"exce.*\"]\n[sandbox]\nprofile = \"off\"\n", "exce.*"),
        ("[[policy.rules]]\nname = \"r\"\neffect = \"deny\"\nwhen = \"caller.\"\n", "`r`"),
        ("[server]\ndialects = [\"klingon\"]\n", "`klingon`"),
    ] {
        let workspace = TempWorkspace::new().file("toolgate.toml", settings);
        let home = TempDir::new().unwrap();
        let done = run_without_config(&workspace, &home, &["trust"]);
        assert!(done.code == 2 && done.err.contains(why), "{settings}: {done:?}");
        assert!(!fs::exists(home.path().join(".local/state/toolgate/trusted")).unwrap());
    }
}

#[test]
fn trust_is_limited_to_the_path_and_content_of_the_file() {
    let workspace = TempWorkspace::new().file("toolgate.toml", WIDENS);
    let home = TempDir::new().unwrap();
    let trusted = run_without_config(&workspace, &home, &["trust"]);
    assert_eq!(trusted.code, 0, "{trusted:?}");
    assert_eq!(trusted.out, "     3  sandbox.profile\n     5  command.\"a.b\"\n");
    let call = ["call", "exec_run", "{\"command\":\"true\"}", "--json"];
    let result = run_without_config(&workspace, &home, &call);
    assert!(result.code == 0 && result.out.contains("\"off\""), "{result:?}");
    // Neither the same content elsewhere nor changed content is trusted.
    let other = TempWorkspace::new().file("toolgate.toml", WIDENS);
    assert_eq!(run_without_config(&other, &home, &call).code, 2);
    let later = WIDENS.replace("a comment", "another");
    workspace.put("toolgate.toml", &later);
    assert_eq!(run_without_config(&workspace, &home, &call).code, 2);
    workspace.put("toolgate.toml", WIDENS);
    assert_eq!(run_without_config(&workspace, &home, &call).code, 0);
    // Earlier content is no longer trusted after later content is.
    workspace.put("toolgate.toml", &later);
    assert_eq!(run_without_config(&workspace, &home, &["trust"]).code, 0);
    workspace.put("toolgate.toml", WIDENS);
    assert_eq!(run_without_config(&workspace, &home, &call).code, 2);
    workspace.put("toolgate.toml", &later);
    assert_eq!(run_without_config(&workspace, &home, &["trust", "--remove"]).code, 0);
    assert_eq!(run_without_config(&workspace, &home, &call).code, 2);
}

#[test]
fn a_file_that_only_restricts_needs_no_trust() {
    let home = TempDir::new().unwrap();
    let narrows = TempWorkspace::new().file("toolgate.toml", "[tools]\ndeny = [\"exec.*\"]\n");
    let listed = run_without_config(&narrows, &home, &["tools"]);
    assert!(listed.code == 0 && !listed.out.contains("exec_run"), "{listed:?}");
    assert!(run_without_config(&narrows, &home, &["trust"]).err.contains("only restricts tools"));
    let none = run_without_config(&TempWorkspace::new(), &home, &["trust"]);
    assert!(none.code == 2 && none.err.contains("there is no toolgate.toml here, so"), "{none:?}");
    assert!(!fs::exists(home.path().join(".local/state/toolgate/trusted")).unwrap());
}

#[test]
fn tools_cannot_write_trust_marks_if_the_home_folder_is_served() {
    let home = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("toolgate.toml", WIDENS);
    run_without_config(&workspace, &home, &["trust"]);
    let write = "{\"path\":\".local/state/toolgate/trusted/x\",\"content\":\"\"}";
    let script = "{\"command\":\"sh\",\"args\":[\"-c\",\"touch .local/state/toolgate/trusted/x; ls -A .local/state/toolgate\"]}";
    let call = |tool, input| {
        let line = TestCommandLine::new(home.path(), &["call", tool, input]);
        line.env("HOME", home.path()).run()
    };
    let written = call("files_write", write);
    assert!(written.code == 1 && written.err.contains("protected"), "{written:?}");
    let result = call("exec_run", script);
    if result.err.contains("lacks view") {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    assert!(!result.out.contains("trusted\n"), "{result:?}");
    assert!(!home.path().join(".local/state/toolgate/trusted/x").exists(), "{result:?}");
}

#[test]
fn a_link_to_a_trusted_file_in_another_folder_is_refused() {
    let trusted = TempWorkspace::new().file("toolgate.toml", WIDENS);
    let linked = TempWorkspace::new();
    let home = TempDir::new().unwrap();
    assert_eq!(run_without_config(&trusted, &home, &["trust"]).code, 0);
    assert_eq!(run_without_config(&trusted, &home, &["check-config"]).code, 0);
    std::os::unix::fs::symlink(trusted.path("toolgate.toml"), linked.path("toolgate.toml"))
        .unwrap();
    for args in [&["check-config"][..], &["tools"], &["trust"], &["stdio"]] {
        let done = run_without_config(&linked, &home, args);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("it is a link"), "{done:?}");
    }
}

#[test]
fn a_settings_path_that_is_not_a_regular_file_is_refused_at_once() {
    for make in [&["mkfifo"][..], &["mkdir"], &["truncate", "-s", "3G"], &["ln", "-s", "/dev/zero"]]
    {
        let workspace = TempWorkspace::new();
        let home = TempDir::new().unwrap();
        let mut command = Command::new(make[0]);
        command.args(&make[1..]).arg("toolgate.toml").current_dir(workspace.root());
        assert!(command.status().unwrap().success());
        for args in [&["check-config"][..], &["trust"], &["stdio"]] {
            let done = run_without_config(&workspace, &home, args);
            assert_eq!(done.code, 2, "{make:?} {done:?}");
            assert!(done.err.contains("toolgate.toml"), "{make:?} {done:?}");
        }
    }
}

#[test]
fn tools_cannot_write_into_a_folder_of_packs() {
    let workspace = TempWorkspace::new();
    let pack = "[command.\"a.b\"]\nabout = \"a\"\nargv = [\"x\"]\nprogram = \"true\"\n";
    let workspace = workspace.file("settings/packs/p.toml", pack);
    // Paths of packs are relative to the configuration file.
    let workspace = workspace.file("settings/other.toml", "[commands]\npacks = [\"packs\"]\n");
    let call = |path: &str| {
        let input = format!("{{\"path\":\"{path}\",\"content\":\"\"}}");
        let args = ["call", "--config", "settings/other.toml", "files_write", &input];
        TestCommandLine::new(workspace.root(), &args).run()
    };
    let refused = call("settings/packs/more.toml");
    assert!(refused.code == 1 && refused.err.contains("protected"), "{refused:?}");
    assert!(!workspace.path("settings/packs/more.toml").exists());
    let written = call("settings/free.toml");
    assert_eq!(written.code, 0, "{written:?}");
}
