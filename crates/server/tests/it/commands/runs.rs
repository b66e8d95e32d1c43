//! Tests of commands that run Zyra, and of the files that it writes.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::json;
use toolgate_contract::{ProducedFile, ToolRunStatus};

use super::{CommandPackTestBench, program_path};

/// Returns a two-dimensional array of 18 by 36 numbers in the file format of numpy.
fn field() -> Vec<u8> {
    let mut head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (18, 36), }".to_vec();
    head.resize(117, b' ');
    head.push(b'\n');
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(head);
    file.extend((0..18 * 36).flat_map(|at| f64::from(at % 36).to_le_bytes()));
    file
}

fn first_bytes(file: &ProducedFile, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    file.handle.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[tokio::test]
async fn a_heatmap_is_drawn_and_returned() {
    let bench = CommandPackTestBench::with(&program_path("zyra"));
    fs::create_dir(bench.workspace.path().join("samples")).unwrap();
    fs::write(bench.workspace.path().join("samples/demo.npy"), field()).unwrap();
    let input = json!({
        "src": "samples/demo.npy", "dest": "heatmap.png", "features": "none",
        "width": 640, "height": 320, "extent": [-180, 180, -90, 90]
    });
    let (output, files) = bench.call("visualize.heatmap", input).await;
    let output = output.unwrap();
    assert_eq!(output.ending, ToolRunStatus::Done, "{}", output.value);
    assert_eq!(output.value["artefacts"], json!(["heatmap.png"]));
    let [png] = &files[..] else { panic!("{files:?}") };
    let head = first_bytes(png, 24);
    assert_eq!(head[..8], *b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (640, 320));
}

#[tokio::test]
async fn a_grib2_file_is_decoded() {
    let bench = CommandPackTestBench::with(&program_path("zyra"));
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/commands/demo.grib2");
    fs::copy(sample, bench.workspace.path().join("demo.grib2")).unwrap();
    let (output, _) = bench.call("process.decode_grib2", json!({"file": "demo.grib2"})).await;
    let output = output.unwrap();
    assert_eq!(output.value["exit_code"], 0, "{}", output.value);
    assert!(output.text.body.contains("'variables': ['t2m']"), "{}", output.text.body);
}

#[tokio::test]
async fn frames_are_described() {
    let bench = CommandPackTestBench::with(&program_path("zyra"));
    fs::create_dir(bench.workspace.path().join("frames")).unwrap();
    for hour in ["00", "01", "03"] {
        let name = format!("frames/frame_20240101{hour}0000.png");
        fs::write(bench.workspace.path().join(name), "").unwrap();
    }
    let input = json!({
        "frames_dir": "frames", "datetime-format": "%Y%m%d%H%M%S", "period_seconds": 3600,
        "output": "meta/frames.json"
    });
    let (output, files) = bench.call("transform.metadata", input).await;
    let output = output.unwrap();
    assert_eq!(output.ending, ToolRunStatus::Done, "{}", output.value);
    let [file] = &files[..] else { panic!("{files:?}: {}", output.value) };
    assert_eq!(file.path, "meta/frames.json");
    let text = fs::read_to_string(bench.workspace.path().join(&file.path)).unwrap();
    let described: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(described["frame_count_actual"], 3);
    assert_eq!(described["missing_timestamps"], json!(["2024-01-01T02:00:00"]));
}

#[tokio::test]
async fn a_missing_file_fails_with_the_error_of_zyra() {
    let bench = CommandPackTestBench::with(&program_path("zyra"));
    let (output, files) = bench.call("process.decode_grib2", json!({"input": "no.grib2"})).await;
    let output = output.unwrap();
    assert_eq!((output.ending, files.len()), (ToolRunStatus::ProgramFailed, 0));
    assert_eq!(output.value["exit_code"], 1);
    let stderr = output.value["stderr"].as_str().unwrap();
    assert!(stderr.contains("No such file or directory: 'no.grib2'"), "{stderr}");
}

#[tokio::test]
async fn the_catalogue_is_searched() {
    let bench = CommandPackTestBench::with(&program_path("zyra"));
    let (output, _) = bench.call("search.query", json!({"query": "ocean", "limit": 2})).await;
    let output = output.unwrap();
    let found: serde_json::Value =
        serde_json::from_str(output.value["stdout"].as_str().unwrap()).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 2);
}
