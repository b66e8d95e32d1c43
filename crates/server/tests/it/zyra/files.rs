//! Tests of a job's files: the manifest, downloads one by one and in a zip archive, and refusals.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{HttpServerProcess, ServerLaunchOptions, TempWorkspace, let_continue};

fn finished_job(workspace: &TempWorkspace, tool: &str) -> (HttpServerProcess, String) {
    let served = ServerLaunchOptions::over(workspace).served();
    let id = served.start_job(tool, json!({}));
    served.job_in("succeeded", &id);
    (served, id)
}

#[test]
fn s4_45_a_single_file_is_downloaded_with_its_type_and_name() {
    let workspace = TempWorkspace::with_commands();
    let (served, id) = finished_job(&workspace, "draw-one");
    for target in ["download", "download?file=plot.png", "download?zip=0"] {
        let file = served.get(&format!("/jobs/{id}/{target}"));
        assert_eq!((file.status, &*file.body), (200, &b"drawn"[..]), "{target}");
        assert_eq!(file.header("content-type"), Some("image/png"));
        assert_eq!(file.header("content-length"), Some("5"));
        let disposition = file.header("content-disposition");
        assert_eq!(disposition, Some("attachment; filename=\"plot.png\""));
    }
    // The job has its own copy: a later change in the workspace does not affect it.
    workspace.put("out/plot.png", "drawn over");
    assert_eq!(served.get(&format!("/jobs/{id}/download")).body, b"drawn");
}

#[test]
fn s4_46_the_manifest_lists_the_files_in_the_workspace() {
    let workspace = TempWorkspace::with_commands();
    let (served, id) = finished_job(&workspace, "draw-many");
    let manifest = served.get(&format!("/v1/jobs/{id}/manifest")).json();
    assert_eq!(manifest["job_id"], json!(id));
    let artifacts = manifest["artifacts"].as_array().unwrap();
    let mut paths: Vec<_> = artifacts.iter().map(|file| file["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["out/Größe 1.bin", "out/a/page.txt", "out/b/page.txt"]);
    for artifact in artifacts {
        let keys: Vec<_> = artifact.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["name", "path", "size", "mtime", "media_type"]);
        let path = workspace.path(artifact["path"].as_str().unwrap());
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(artifact["size"], meta.len(), "{artifact}");
        assert_eq!(artifact["mtime"].as_i64(), Some(meta.mtime()), "{artifact}");
        let name = artifact["name"].as_str().unwrap();
        let query: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let file = served.get(&format!("/jobs/{id}/download?file={query}"));
        assert_eq!(file.body, std::fs::read(&path).unwrap(), "{artifact}");
        let media_type = artifact["media_type"].as_str();
        assert_eq!(file.header("content-type"), media_type, "{artifact}");
    }
    let names: Vec<_> = artifacts.iter().map(|file| file["name"].clone()).collect();
    assert_eq!(names, ["Größe 1.bin", "page-2.txt", "page.txt"]);
}

#[test]
fn s4_45_all_files_are_downloaded_in_a_zip_that_python_reads() {
    let workspace = TempWorkspace::with_commands();
    let (served, id) = finished_job(&workspace, "draw-many");
    let folder = TempDir::new().unwrap();
    for target in ["download?zip=1", "download"] {
        let file = served.get(&format!("/jobs/{id}/{target}"));
        assert_eq!(file.header("content-type"), Some("application/zip"));
        let disposition = file.header("content-disposition").unwrap();
        assert_eq!(disposition, format!("attachment; filename=\"{id}.zip\""));
        let zip = folder.path().join("all.zip");
        std::fs::write(&zip, &file.body).unwrap();
        let script = "import sys, zipfile, json
z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None
print(json.dumps({name: z.read(name).hex() for name in sorted(z.namelist())}))";
        let out = Command::new("python3").args(["-c", script]).arg(&zip).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let read: Value = serde_json::from_slice(&out.stdout).unwrap();
        let page = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(read["Größe 1.bin"], "ff00");
        let mut pages =
            [&read["page.txt"], &read["page-2.txt"]].map(|it| it.as_str().unwrap().to_owned());
        pages.sort();
        let mut expected = [page("one"), page("another")];
        expected.sort();
        assert_eq!(pages, expected);
        assert_eq!(read.as_object().unwrap().len(), 3);
    }
}

#[test]
fn s4_45_the_download_of_a_job_without_files_is_its_output() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("work-wait", json!({ "name": "a" }));
    served.job_in("succeeded", &id);
    let file = served.get(&format!("/jobs/{id}/download"));
    assert_eq!((file.status, file.text()), (200, "began\nwent\n".to_owned()));
    assert_eq!(file.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(file.header("content-disposition").unwrap().contains("output.txt"));
    let manifest = served.get(&format!("/jobs/{id}/manifest")).json();
    assert_eq!(manifest["artifacts"][0]["name"], "output.txt");
    check_downloads(&served, &id, &[("output.txt", b"began\nwent\n")]);
}

/// Checks that manifest, download, `output_file`, `?file=` and `?zip=1` of the job `id` return
/// exactly `files`.
#[track_caller]
fn check_downloads(served: &HttpServerProcess, id: &str, files: &[(&str, &[u8])]) {
    let manifest = served.get(&format!("/jobs/{id}/manifest")).json();
    let listed = manifest["artifacts"].as_array().unwrap();
    let names: Vec<_> = listed.iter().map(|file| file["name"].as_str().unwrap()).collect();
    let expected: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected);
    for (artifact, (name, content)) in listed.iter().zip(files) {
        let file = served.get(&format!("/jobs/{id}/download?file={name}"));
        assert_eq!((file.status, &*file.body), (200, *content), "{name}");
        assert_eq!(artifact["size"], content.len(), "{artifact}");
        assert_eq!(file.header("content-type"), artifact["media_type"].as_str(), "{artifact}");
    }
    let job = served.job(id);
    let status = if files.is_empty() { 404 } else { 200 };
    let output_file = format!("/v1/jobs/{id}/download");
    let output_file = if files.is_empty() { Value::Null } else { json!(output_file) };
    assert_eq!(job["output_file"], output_file, "{job}");
    let download = served.get(&format!("/jobs/{id}/download"));
    assert_eq!(download.status, status, "{download:?}");
    if let [(_, content)] = files {
        assert_eq!(&*download.body, *content);
    }
    assert_eq!(served.get(&format!("/jobs/{id}/download?zip=1")).status, status);
    assert_eq!(served.get(&format!("/jobs/{id}/download?file=other.txt")).status, 404);
}

/// Returns a workspace whose command `draw.at` runs `script` with its argument `output`, and may
/// write the folder `outside`.
fn drawing_at(outside: &TempDir, script: &str) -> TempWorkspace {
    let outside = outside.path().to_str().unwrap();
    TempWorkspace::new().file(
        "toolgate.toml",
        format!(
            "[sandbox]\nwrite = [{outside:?}]\n[command.\"draw.at\"]\nabout = \"Draws.\"\n\
             program = \"sh\"\nargv = [\"-c\", {script:?}, \"sh\", \"{{output}}\"]\n\
             artefacts = [\"{{output}}\"]\n[command.\"draw.at\".args]\noutput = \"path!\"\n"
        ),
    )
}

#[test]
fn a_file_in_a_writable_folder_outside_the_workspace_is_downloaded() {
    let outside = TempDir::new().unwrap();
    let workspace = drawing_at(&outside, "printf '\\1\\2' > \"$1\"; echo done");
    let served = ServerLaunchOptions::over(&workspace).served();
    let output = outside.path().join("map.tif");
    let id = served.start_job("draw-at", json!({ "output": output }));
    served.job_in("succeeded", &id);
    check_downloads(&served, &id, &[("map.tif", b"\x01\x02")]);
    let manifest = served.get(&format!("/jobs/{id}/manifest")).json();
    assert_eq!(manifest["artifacts"][0]["path"], json!(output));
}

#[test]
fn a_job_that_only_failed_to_keep_its_file_offers_no_download() {
    let outside = TempDir::new().unwrap();
    let workspace = drawing_at(&outside, "echo drawn at \"$1\"");
    // Without a sandbox, the program may write anywhere.
    let settings = workspace.read("toolgate.toml");
    workspace
        .put("toolgate.toml", settings.replace("[sandbox]\n", "[sandbox]\nprofile = \"off\"\n"));
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("draw-at", json!({ "output": "/nowhere/map.tif" }));
    served.job_in("succeeded", &id);
    check_downloads(&served, &id, &[]);
}

#[test]
fn a_job_whose_file_would_be_lost_in_the_sandbox_fails_before_the_program_runs() {
    let outside = TempDir::new().unwrap();
    let workspace = drawing_at(&outside, "echo x > ran");
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("draw-at", json!({ "output": "/nowhere/map.tif" }));
    let job = served.job_in("failed", &id);
    assert!(job.to_string().contains("outside the workspace"), "{job}");
    assert!(!workspace.path("ran").exists());
}

#[test]
fn a_failed_job_with_a_file_offers_that_file() {
    let outside = TempDir::new().unwrap();
    let workspace = drawing_at(&outside, "echo half > \"$1\"; exit 3");
    let served = ServerLaunchOptions::over(&workspace).served();
    for output in ["half.txt".into(), outside.path().join("half.txt")] {
        let id = served.start_job("draw-at", json!({ "output": output }));
        served.job_in("failed", &id);
        check_downloads(&served, &id, &[("half.txt", b"half\n")]);
    }
}

#[test]
fn a_job_that_prints_without_an_optional_file_offers_what_it_printed() {
    let outside = TempDir::new().unwrap();
    let workspace = drawing_at(&outside, "printf 'no map'");
    let served = ServerLaunchOptions::over(&workspace).served();
    for output in ["map.tif".into(), outside.path().join("map.tif"), "/dev/stdout".into()] {
        let id = served.start_job("draw-at", json!({ "output": output }));
        served.job_in("succeeded", &id);
        check_downloads(&served, &id, &[("output.txt", b"no map")]);
    }
}

#[test]
fn s4_45_only_the_files_of_a_job_are_downloaded() {
    let workspace = TempWorkspace::with_commands();
    let (served, id) = finished_job(&workspace, "draw-one");
    let traversals = [
        "../plot.png",
        "..%2Fplot.png",
        "..",
        ".",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "a%00b",
        "a%5Cb",
        "out%2Fplot.png",
        "..%252Fx/y",
        "",
    ];
    for name in traversals {
        let refused = served.get(&format!("/jobs/{id}/download?file={name}"));
        assert_eq!(refused.status, 400, "{name}: {refused:?}");
    }
    for name in ["plot.jpg", "README.md", "%2e%2e%252fx"] {
        let refused = served.get(&format!("/jobs/{id}/download?file={name}"));
        assert_eq!(refused.status, 404, "{name}: {refused:?}");
    }
    let refused = served.get(&format!("/jobs/{id}/download?file=plot.png&zip=1"));
    assert_eq!(refused.status, 400, "{refused:?}");
    let path = served.get(&format!("/jobs/{id}/download/../../../etc/passwd"));
    assert_eq!(path.status, 404, "{path:?}");
}

#[test]
fn s4_45_a_failed_or_running_job_has_no_download() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("tell-steps", json!({ "name": "a", "code": "1" }));
    assert_eq!(served.get(&format!("/jobs/{id}/download")).status, 404);
    let_continue(&workspace);
    served.job_in("failed", &id);
    for target in ["download", "download?zip=1", "download?file=a"] {
        let refused = served.get(&format!("/jobs/{id}/{target}"));
        assert_eq!(refused.status, 404, "{target}: {refused:?}");
    }
    assert_eq!(served.get(&format!("/jobs/{id}/manifest")).json()["artifacts"], json!([]));
}

#[test]
fn a_large_file_is_downloaded_in_little_memory() {
    let workspace = TempWorkspace::new().file(
        "toolgate.toml",
        "[command.\"draw.large\"]\nabout = \"Large.\"\nprogram = \"sh\"\n\
         argv = [\"-c\", \"head -c 67108864 /dev/zero | tr '\\\\0' x > large.bin\"]\n\
         artefacts = [\"large.bin\"]\n",
    );
    let (served, id) = finished_job(&workspace, "draw-large");
    let before = crate::support::peak_memory_kib(served.pid);
    let file = served.get(&format!("/jobs/{id}/download"));
    assert_eq!(file.body.len(), 64 << 20);
    assert!(file.body.iter().all(|byte| *byte == b'x'));
    let grown = crate::support::peak_memory_kib(served.pid).saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
}
