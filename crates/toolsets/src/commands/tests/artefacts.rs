//! Tests that the artefacts of a command are exactly the files that it wrote in the workspace.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::{CommandTestBench, refusal};

const ARTEFACTS: &str = "argv = [\"{output?}\"]\nartefacts = [\"{output?}\", \"{dir?}/**\", \"*.log\"]\n\
    [command.\"x.y\".args]\noutput = \"path\"\ndir = \"path\"\n";

#[tokio::test]
async fn files_written_since_the_start_are_artefacts_in_order() {
    let bench = CommandTestBench::script(
        "mkdir -p out/deep; echo o >\"$1\"; echo 2 >out/deep/b; echo 1 >out/a; echo l >x.log; \
         echo n >x.txt; touch -d 2001-01-01 out/a",
        ARTEFACTS,
    );
    fs::create_dir(bench.workspace.path().join("out")).unwrap();
    fs::write(bench.workspace.path().join("out/before"), "old").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    let output = bench.call(json!({"output": "o[1].png", "dir": "./out/"})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!(["o[1].png", "out/a", "out/deep/b", "x.log"]));
    let files = bench.produced_files();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    assert_eq!(
        files,
        [("o[1].png", "o\n"), ("out/a", "1\n"), ("out/deep/b", "2\n"), ("x.log", "l\n")]
    );
    let note = output.text.note.unwrap();
    assert!(note.ends_with("; artefacts: `o[1].png`, `out/a`, `out/deep/b`, `x.log`"), "{note}");
}

#[tokio::test]
async fn the_value_of_an_argument_is_not_a_pattern() {
    let bench = CommandTestBench::script("echo a >a.png; echo b >b.png", ARTEFACTS);
    let output = bench.call(json!({"output": "*.png"})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!([]));
}

#[tokio::test]
async fn a_failed_command_returns_the_files_it_wrote() {
    let bench = CommandTestBench::script("echo half >\"$1\"; exit 3", ARTEFACTS);
    let output = bench.call(json!({"output": "h"})).await.unwrap();
    assert_eq!(output.value["exit_code"], 3);
    assert_eq!(bench.produced_files(), [("h".to_owned(), "half\n".to_owned())]);
}

#[tokio::test]
async fn a_file_outside_the_workspace_is_not_an_artefact_and_is_noted() {
    let bench =
        CommandTestBench::script("[ -z \"$1\" ] || echo x >\"$1\" || :; : >real.log", ARTEFACTS);
    let outside = tempfile::TempDir::new().unwrap();
    let path = outside.path().join("secret");
    for given in [path.to_str().unwrap(), "../escape", "a/../../escape"] {
        let output = bench.call(json!({"output": given})).await.unwrap();
        assert_eq!(output.value["artefacts"], json!(["real.log"]), "{given}");
        let note = output.text.note.unwrap();
        assert!(note.contains(&format!("`{given}` is outside the workspace")), "{note}");
    }
    // The target of a link is not an artefact, either.
    fs::write(&path, "secret").unwrap();
    symlink(outside.path(), bench.workspace.path().join("dir")).unwrap();
    symlink(&path, bench.workspace.path().join("link.log")).unwrap();
    let output = bench.call(json!({"output": "link.log", "dir": "dir"})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!(["real.log"]));
    // An absolute path into the workspace is an artefact.
    let inside = bench.workspace.path().join("in");
    let output = bench.call(json!({"output": inside.to_str().unwrap()})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!(["in", "real.log"]));
    fs::remove_file(std::path::Path::new(bench.workspace.path()).parent().unwrap().join("escape"))
        .unwrap();
}

#[tokio::test]
async fn files_in_a_writable_folder_outside_the_workspace_are_artefacts() {
    let outside = tempfile::TempDir::new().unwrap();
    let folder = outside.path().to_str().unwrap();
    let script = "mkdir -p \"$OUT/deep\"; echo p >\"$1\"; echo d >\"$OUT/deep/d\"";
    let rest = format!("env = {{ OUT = {folder:?} }}\n{ARTEFACTS}");
    let bench = CommandTestBench::script_that_writes(outside.path(), script, &rest);
    let picture = format!("{folder}/plot.png");
    let output =
        bench.call(json!({ "output": &picture, "dir": format!("{folder}/deep/../deep") })).await;
    let output = output.unwrap();
    let deep = format!("{folder}/deep/d");
    assert_eq!(output.value["artefacts"], json!([deep, picture]));
    assert_eq!(output.value.get("left_out"), None);
    let expected = [(deep, "d\n".to_owned()), (picture, "p\n".to_owned())];
    assert_eq!(bench.produced_files(), expected);
}

#[tokio::test]
async fn an_old_file_or_a_link_in_a_writable_folder_is_not_an_artefact() {
    let outside = tempfile::TempDir::new().unwrap();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path().join("old"), "old").unwrap();
    symlink(elsewhere.path(), outside.path().join("link")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    let bench = CommandTestBench::script_that_writes(
        outside.path(),
        "echo x >>\"$OUT/link\"",
        &format!("env = {{ OUT = {:?} }}\n{ARTEFACTS}", outside.path()),
    );
    for (name, left_out) in [("old", false), ("none", false), ("link", true)] {
        let path = outside.path().join(name).to_str().unwrap().to_owned();
        let output = bench.call(json!({ "output": &path })).await.unwrap();
        assert_eq!(output.value["artefacts"], json!([]), "{name}");
        let expected = left_out.then(|| json!([path]));
        assert_eq!(output.value.get("left_out"), expected.as_ref(), "{name}");
    }
}

#[tokio::test]
async fn a_file_outside_all_writable_folders_is_left_out() {
    let bench = CommandTestBench::script("echo printed", ARTEFACTS);
    let output = bench.call(json!({ "output": "/srv/../tmp/x.png" })).await.unwrap();
    assert_eq!(output.value["left_out"], json!(["/srv/../tmp/x.png"]));
    for printed in ["/dev/stdout", "/dev/stderr"] {
        let output = bench.call(json!({ "output": printed })).await.unwrap();
        assert_eq!(output.value.get("left_out"), None, "{printed}");
    }
}

#[tokio::test]
async fn an_artefact_outside_all_writable_folders_is_refused_in_a_sandbox() {
    let bench = CommandTestBench::script(": >ran", ARTEFACTS).in_sandbox(ARTEFACTS);
    for given in ["../notes.tgz", "/tmp/notes.tgz"] {
        let (pointer, message) = refusal(bench.call(json!({ "output": given })).await);
        assert_eq!(pointer, "/output");
        assert!(message.contains(&format!("`{given}` is outside the workspace")), "{message}");
        assert!(message.contains("`sandbox.write`"), "{message}");
    }
    assert!(!bench.workspace.path().join("ran").exists());
}

#[tokio::test]
async fn pipes_folders_and_links_are_not_artefacts() {
    let bench = CommandTestBench::script(
        "mkfifo f.log; mkdir d.log; ln -s x.log l.log; : >x.log",
        ARTEFACTS,
    );
    let output = bench.call(json!({"output": "https://example.org/x"})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!(["x.log"]));
}

#[tokio::test]
async fn patterns_are_relative_to_the_directory_of_the_program() {
    let bench = CommandTestBench::script(
        "echo x >\"$1\"; : >y.log",
        &format!("cwd = \"sub\"\n{ARTEFACTS}"),
    );
    fs::create_dir(bench.workspace.path().join("sub")).unwrap();
    let output = bench.call(json!({"output": "x"})).await.unwrap();
    assert_eq!(output.value["artefacts"], json!(["sub/x", "sub/y.log"]));
}

#[tokio::test]
async fn artefacts_beyond_the_limit_are_left_out_and_noted() {
    let bench = CommandTestBench::script("for i in $(seq 1100); do : >$i.log; done", ARTEFACTS);
    let output = bench.call(json!({})).await.unwrap();
    assert_eq!(output.value["artefacts"].as_array().unwrap().len(), 1000);
    let note = output.text.note.unwrap();
    assert!(note.contains("only the first 1000 artefacts are returned"), "{note}");
}
