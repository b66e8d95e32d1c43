//! Stores the evaluation set in one file, so that the next run loads it quickly.

use std::path::Path;

use super::{EvalPackage, EvalQuery, PackageFunction, PackageLanguage};

/// Reads the evaluation set stored at `path`. Returns `None` if the file is missing or truncated.
pub(super) fn read(path: &Path) -> Option<Vec<EvalPackage>> {
    let bytes = std::fs::read(path).ok()?;
    let mut rest = bytes.as_slice();
    let packages = read_list(&mut rest, |rest| {
        let name = read_text(rest)?;
        let lang = *PackageLanguage::ALL.get(read_number(rest)?)?;
        let units = read_list(rest, |rest| {
            Some(PackageFunction {
                name: read_text(rest)?,
                within: read_text(rest)?,
                path: read_text(rest)?,
                head: read_text(rest)?,
                body: read_text(rest)?,
            })
        })?;
        Some(EvalPackage {
            name,
            lang,
            units,
            queries: read_list(rest, read_query)?,
            pairs: read_list(rest, read_query)?,
        })
    })?;
    rest.is_empty().then_some(packages)
}

/// Stores the evaluation set `packages` at `path`.
pub(super) fn write(path: &Path, packages: &[EvalPackage]) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    put_number(&mut bytes, packages.len())?;
    for package in packages {
        put_text(&mut bytes, &package.name)?;
        put_number(&mut bytes, package.lang as usize)?;
        put_number(&mut bytes, package.units.len())?;
        for unit in &package.units {
            for part in [&unit.name, &unit.within, &unit.path, &unit.head, &unit.body] {
                put_text(&mut bytes, part)?;
            }
        }
        for queries in [&package.queries, &package.pairs] {
            put_number(&mut bytes, queries.len())?;
            for query in queries {
                put_text(&mut bytes, &query.text)?;
                put_number(&mut bytes, query.unit)?;
                bytes.extend(query.overlap.to_le_bytes());
            }
        }
    }
    // Another run may write the same file at the same time. Both have the same content.
    let unfinished = path.with_extension(format!("{}.half", std::process::id()));
    std::fs::write(&unfinished, bytes)?;
    Ok(std::fs::rename(&unfinished, path)?)
}

fn put_number(bytes: &mut Vec<u8>, number: usize) -> anyhow::Result<()> {
    bytes.extend(u32::try_from(number)?.to_le_bytes());
    Ok(())
}

fn put_text(bytes: &mut Vec<u8>, text: &str) -> anyhow::Result<()> {
    put_number(bytes, text.len())?;
    bytes.extend(text.as_bytes());
    Ok(())
}

fn read_number(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn read_text(rest: &mut &[u8]) -> Option<String> {
    let bytes = read_number(rest)?;
    let (text, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

fn read_query(rest: &mut &[u8]) -> Option<EvalQuery> {
    let text = read_text(rest)?;
    let unit = read_number(rest)?;
    let (overlap, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(EvalQuery { text, unit, overlap: f32::from_le_bytes(*overlap) })
}

fn read_list<T>(rest: &mut &[u8], each: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    (0..read_number(rest)?).map(|_| each(rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_set_is_read_again_and_a_truncated_file_is_not() {
        let unit = |name: &str| PackageFunction {
            name: name.to_owned(),
            within: "Pot".to_owned(),
            path: "src/a.rs".to_owned(),
            head: String::new(),
            body: "fn größe() {}".to_owned(),
        };
        let query = EvalQuery { text: "How big it is".to_owned(), unit: 1, overlap: 0.25 };
        let packages = vec![
            EvalPackage {
                name: "kitchen".to_owned(),
                lang: PackageLanguage::Python,
                units: vec![unit("a"), unit("b")],
                queries: vec![query.clone()],
                pairs: vec![query.clone(), query],
            },
            EvalPackage {
                name: "empty".to_owned(),
                lang: PackageLanguage::Rust,
                units: Vec::new(),
                queries: Vec::new(),
                pairs: Vec::new(),
            },
        ];
        let path = std::env::temp_dir().join(format!("toolgate-eval-{}", std::process::id()));
        write(&path, &packages).unwrap();
        assert_eq!(read(&path).as_ref(), Some(&packages));
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(read(&path), None, "{end} of {}", whole.len());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
