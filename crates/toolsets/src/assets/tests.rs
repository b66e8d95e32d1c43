//! Assets in workspaces of their own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use toolgate_contract::{
    Caller, Completing, CompletingOf, Contents, Ctx, Effects, Fault, Resources,
};

use super::read::missing;
use super::{Assets, Settings};
use crate::world::Root;

fn bench(settings: &Settings) -> (TempDir, Option<Arc<Assets>>) {
    let dir = TempDir::new().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("schemas/shader.schema.json", "{}");
    put("schemas/tone.json", "{\"type\": \"object\"}");
    put("schemas/readme.md", "");
    put("schemas/.json", "");
    put("examples/sub/a b.json", "[1]");
    symlink("/etc/hostname", dir.path().join("schemas/out.json")).unwrap();
    let assets = Assets::new(&Root::open(dir.path()).unwrap(), settings);
    (dir, assets)
}

fn both() -> Settings {
    Settings { schemas: Some("schemas".to_owned()), examples: Some("examples".to_owned()) }
}

fn ctx() -> Ctx {
    Ctx::alone(Caller::local(), Instant::now() + Duration::from_secs(60))
}

#[tokio::test]
async fn without_folders_there_are_no_assets() {
    assert!(bench(&Settings::default()).1.is_none());
    let nowhere = Settings { schemas: Some("nowhere".to_owned()), examples: None };
    let (_dir, assets) = bench(&nowhere);
    assert!(assets.unwrap().list(&ctx(), None, 10).await.unwrap().is_empty());
}

#[test]
fn a_folder_that_is_none_of_the_workspace_is_refused() {
    both().check().unwrap();
    Settings::default().check().unwrap();
    let refused = |settings: Settings, start: &str| {
        let wrong = settings.check().unwrap_err();
        assert!(wrong.starts_with(start), "{wrong}");
    };
    let folder = |folder: &str| Some(folder.to_owned());
    refused(Settings { schemas: folder("../x"), ..both() }, "`assets.schemas` names `../x`");
    refused(Settings { examples: folder(""), ..both() }, "`assets.examples` names an empty");
}

#[test]
fn a_folder_without_assets_has_its_reason() {
    let (dir, _) = bench(&both());
    let root = Root::open(dir.path()).unwrap();
    assert_eq!(missing(&root, "schemas"), None);
    assert!(missing(&root, "nosuch").unwrap().contains("nosuch"));
    assert_eq!(missing(&root, "schemas/tone.json").as_deref(), Some("it is no folder"));
}

#[tokio::test]
async fn schemas_and_examples_are_listed_and_read_by_name() {
    let (_dir, assets) = bench(&both());
    let assets = assets.unwrap();
    assert_eq!(assets.guard().effects, Effects::Reads);
    assert_eq!(assets.guard().id.as_str(), "assets.get_schema");
    let list = assets.list(&ctx(), None, 10).await.unwrap();
    let uris: Vec<&str> = list.iter().map(|spec| spec.uri.as_str()).collect();
    let all = ["asset://examples/sub/a%20b", "asset://schemas/shader", "asset://schemas/tone"];
    assert_eq!(uris, all);
    let rest = assets.list(&ctx(), Some(all[0]), 1).await.unwrap();
    assert_eq!(rest, list[1..2]);
    let read = assets.read(&ctx(), all[2]).await.unwrap();
    assert_eq!(read, [Contents::text(all[2], "application/schema+json", "{\"type\": \"object\"}")]);
    let read = assets.read(&ctx(), all[0]).await.unwrap();
    assert_eq!(read, [Contents::text(all[0], "application/json", "[1]")]);
    for uri in ["asset://schemas/out", "asset://schemas/../examples/sub/a%20b", "asset://other/x"] {
        assert!(assets.owns(uri));
        assert_eq!(assets.read(&ctx(), uri).await.unwrap_err().fault, Fault::NotFound, "{uri}");
    }
    assert!(!assets.owns("skill://a"));
}

#[tokio::test]
async fn a_name_is_completed_among_its_own_kind() {
    let (_dir, assets) = bench(&both());
    let assets = assets.unwrap();
    let offered = async |template: &str| {
        let asked = Completing {
            of: CompletingOf::Template(template.to_owned()),
            argument: "name".to_owned(),
            so_far: String::new(),
            others: BTreeMap::new(),
        };
        assets.complete(&ctx(), &asked).await.unwrap()
    };
    let templates: Vec<String> = assets.templates().into_iter().map(|it| it.uri).collect();
    assert_eq!(templates, ["asset://examples/{+name}", "asset://schemas/{+name}"]);
    assert_eq!(offered(&templates[0]).await, ["sub/a%20b"]);
    assert_eq!(offered(&templates[1]).await, ["shader", "tone"]);
    assert!(offered("asset://other/{+name}").await.is_empty());
}
