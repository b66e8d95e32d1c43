//! Tests of the guide to the Synesthetic contract, and that each requirement has a test.

use std::fs;
use std::path::Path;

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(checkout().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

#[test]
fn s0_64_79_the_documents_name_replacements_for_pythons_tools_and_how_to_run_the_tests() {
    let guide = read("docs/guide/synesthetic.md");
    for tool in [
        "jsonschema",
        "httpx",
        "pytest",
        "referencing",
        "ruff",
        "mypy",
        "Python ≥ 3.11",
        "pip install",
    ] {
        let row =
            guide.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{tool}`")));
        let row = row.unwrap_or_else(|| panic!("the guide names no replacement for {tool}"));
        assert!(row.split('|').nth(2).is_some_and(|cell| cell.trim().len() > 5), "{row}");
    }
    // The replacement for `pytest -q` is the command that runs this test.
    assert!(read("README.md").contains("cargo xtask test"));
    let test = read("xtask/src/shell.rs");
    assert!(
        test.contains("[\"nextest\", \"run\", \"--workspace\""),
        "`cargo xtask test` does not run nextest"
    );
}

#[test]
fn s0_82_every_requirement_has_a_test_named_after_it() {
    let mut names = String::new();
    for entry in fs::read_dir(checkout().join("crates/server/tests/it/contracts/s0")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let tests = text.lines().filter_map(|line| line.strip_prefix("fn s0_"));
            tests.for_each(|name| names += &format!("{}\n", name.split('(').next().unwrap()));
        }
    }
    let shown = |row: u32| {
        let shows = |name: &str| {
            let rows = name.split('_').map_while(|word| word.parse::<u32>().ok());
            rows.collect::<Vec<_>>().contains(&row)
        };
        names.lines().any(shows)
    };
    let missing: Vec<_> = (1..=82).filter(|row| !shown(*row)).collect();
    assert!(missing.is_empty(), "no test covers S0-{missing:?}");
    // The guide documents each variable and method.
    let guide = read("docs/guide/synesthetic.md");
    for word in [
        "MCP_READY_FILE",
        "SYN_SCHEMAS_DIR",
        "SYN_EXAMPLES_DIR",
        "SYN_BACKEND_URL",
        "SYN_BACKEND_ASSETS_PATH",
        "MCP_ENDPOINT",
        "list_schemas",
        "get_schema",
        "list_examples",
        "get_example",
        "validate_asset",
        "diff_assets",
        "populate_backend",
        "toolgate stdio --dialect synesthetic",
        "toolgate contract validate",
    ] {
        assert!(guide.contains(word), "the guide does not mention {word}");
    }
}
