//! Whether the configuration that lies in a folder is believed.

use std::fs;

use super::*;
use crate::support::Workspace;

const WIDENS: &str = "# a comment\n[sandbox]\nprofile = \"off\"\n\n[command.\"a.b\"]\nabout = \"a\"\nargv = [\"true\"]\nprogram = \"true\"\n";

/// `toolgate WORDS` in a folder whose file nobody has named.
fn unnamed(workspace: &Workspace, home: &TempDir, words: &[&str]) -> Done {
    let mut line = Line::new(workspace.root(), words).env("HOME", home.path());
    line.command.env_remove("TOOLGATE_CONFIG");
    line.run()
}

#[test]
fn a_file_that_nobody_has_vouched_for_is_refused_with_what_it_decides() {
    let workspace = Workspace::new().file("toolgate.toml", WIDENS);
    let home = TempDir::new().unwrap();
    let call = ["call", "exec_run", "{\"command\":\"true\"}"];
    for words in [&["serve", "."][..], &["stdio"], &["tools"], &["check-config"], &call] {
        let done = unnamed(&workspace, &home, words);
        assert_eq!(done.code, 2, "{done:?}");
        for told in ["`sandbox.profile` in line 3", "`command` in line 5", "`toolgate trust .`"] {
            assert!(done.err.contains(told), "{words:?}: {done:?}");
        }
    }
}

#[test]
fn a_file_is_believed_as_it_was_when_somebody_vouched_for_it() {
    let workspace = Workspace::new().file("toolgate.toml", WIDENS);
    let home = TempDir::new().unwrap();
    let trusted = unnamed(&workspace, &home, &["trust"]);
    assert_eq!(trusted.code, 0, "{trusted:?}");
    assert_eq!(trusted.out, "     3  sandbox.profile\n     5  command\n");
    let call = ["call", "exec_run", "{\"command\":\"true\"}", "--json"];
    let ran = unnamed(&workspace, &home, &call);
    assert!(ran.code == 0 && ran.out.contains("\"off\""), "{ran:?}");
    // A file of the same content elsewhere is another, and so is this one once it is changed.
    let other = Workspace::new().file("toolgate.toml", WIDENS);
    assert_eq!(unnamed(&other, &home, &call).code, 2);
    let later = WIDENS.replace("a comment", "another");
    workspace.put("toolgate.toml", &later);
    assert_eq!(unnamed(&workspace, &home, &call).code, 2);
    workspace.put("toolgate.toml", WIDENS);
    assert_eq!(unnamed(&workspace, &home, &call).code, 0);
    // Nor is it believed once somebody has vouched for what came after it.
    workspace.put("toolgate.toml", &later);
    assert_eq!(unnamed(&workspace, &home, &["trust"]).code, 0);
    workspace.put("toolgate.toml", WIDENS);
    assert_eq!(unnamed(&workspace, &home, &call).code, 2);
    workspace.put("toolgate.toml", &later);
    assert_eq!(unnamed(&workspace, &home, &["trust", "--remove"]).code, 0);
    assert_eq!(unnamed(&workspace, &home, &call).code, 2);
}

#[test]
fn what_only_takes_away_needs_nobody_and_what_is_unsound_is_vouched_for_by_nobody() {
    let home = TempDir::new().unwrap();
    let narrows = Workspace::new().file("toolgate.toml", "[tools]\ndeny = [\"exec.*\"]\n");
    let told = unnamed(&narrows, &home, &["tools"]);
    assert!(told.code == 0 && !told.out.contains("exec_run"), "{told:?}");
    assert!(unnamed(&narrows, &home, &["trust"]).err.contains("only takes away"));
    let unsound = Workspace::new().file("toolgate.toml", "[sandbox]\nprofil = \"off\"\n");
    let done = unnamed(&unsound, &home, &["trust"]);
    assert!(done.code == 2 && done.err.contains("profil"), "{done:?}");
    let none = unnamed(&Workspace::new(), &home, &["trust"]);
    assert!(none.code == 2 && none.err.contains("toolgate.toml"), "{none:?}");
    assert!(!fs::exists(home.path().join(".local/state/toolgate/trusted")).unwrap());
}

#[test]
fn the_marks_cannot_be_made_by_tools_where_the_home_is_served() {
    let home = TempDir::new().unwrap();
    let workspace = Workspace::new().file("toolgate.toml", WIDENS);
    unnamed(&workspace, &home, &["trust"]);
    let write = "{\"path\":\".local/state/toolgate/trusted/x\",\"content\":\"\"}";
    let script = "{\"command\":\"sh\",\"args\":[\"-c\",\"touch .local/state/toolgate/trusted/x; ls -A .local/state/toolgate\"]}";
    let serve = |tool, input| {
        let line = Line::new(home.path(), &["call", tool, input]);
        line.env("HOME", home.path()).run()
    };
    let written = serve("files_write", write);
    assert!(written.code == 1 && written.err.contains("protected"), "{written:?}");
    let ran = serve("exec_run", script);
    if ran.err.contains("lacks view") {
        return eprintln!("NOT TRIED: this system lacks `view`");
    }
    assert!(!ran.out.contains("trusted\n"), "{ran:?}");
    assert!(!home.path().join(".local/state/toolgate/trusted/x").exists(), "{ran:?}");
}

#[test]
fn what_is_believed_in_one_folder_is_not_by_a_link_to_it_from_another() {
    let ours = Workspace::new().file("toolgate.toml", WIDENS);
    let theirs = Workspace::new();
    let home = TempDir::new().unwrap();
    assert_eq!(unnamed(&ours, &home, &["trust"]).code, 0);
    assert_eq!(unnamed(&ours, &home, &["check-config"]).code, 0);
    std::os::unix::fs::symlink(ours.path("toolgate.toml"), theirs.path("toolgate.toml")).unwrap();
    for words in [&["check-config"][..], &["tools"], &["trust"], &["stdio"]] {
        let done = unnamed(&theirs, &home, words);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("it is a link"), "{done:?}");
    }
}

#[test]
fn what_is_no_file_is_neither_waited_for_nor_read_without_end() {
    for make in [&["mkfifo"][..], &["mkdir"], &["truncate", "-s", "3G"], &["ln", "-s", "/dev/zero"]]
    {
        let workspace = Workspace::new();
        let home = TempDir::new().unwrap();
        let mut command = Command::new(make[0]);
        command.args(&make[1..]).arg("toolgate.toml").current_dir(workspace.root());
        assert!(command.status().unwrap().success());
        for words in [&["check-config"][..], &["trust"], &["stdio"]] {
            let done = unnamed(&workspace, &home, words);
            assert_eq!(done.code, 2, "{make:?} {done:?}");
            assert!(done.err.contains("toolgate.toml"), "{make:?} {done:?}");
        }
    }
}

#[test]
fn nothing_is_put_beside_the_packs_of_a_folder() {
    let at = Workspace::new();
    let pack = "[command.\"a.b\"]\nabout = \"a\"\nargv = [\"x\"]\nprogram = \"true\"\n";
    let at = at.file("settings/packs/p.toml", pack);
    // Packs are meant from where the configuration is.
    let at = at.file("settings/other.toml", "[commands]\npacks = [\"packs\"]\n");
    let call = |path: &str| {
        let input = format!("{{\"path\":\"{path}\",\"content\":\"\"}}");
        let words = ["call", "--config", "settings/other.toml", "files_write", &input];
        Line::new(at.root(), &words).run()
    };
    let refused = call("settings/packs/more.toml");
    assert!(refused.code == 1 && refused.err.contains("protected"), "{refused:?}");
    assert!(!at.path("settings/packs/more.toml").exists());
    let made = call("settings/free.toml");
    assert_eq!(made.code, 0, "{made:?}");
}
