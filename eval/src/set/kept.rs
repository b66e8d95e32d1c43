//! The set as one file, so that it is there in a moment the second time.

use std::path::Path;

use super::{Lang, Package, Query, Unit};

/// What was kept; `None` where there is nothing or it is cut off.
pub(super) fn read(path: &Path) -> Option<Vec<Package>> {
    let bytes = std::fs::read(path).ok()?;
    let mut rest = bytes.as_slice();
    let packages = many(&mut rest, |rest| {
        let name = text(rest)?;
        let lang = if number(rest)? == 0 { Lang::Rust } else { Lang::Python };
        let units = many(rest, |rest| {
            Some(Unit {
                name: text(rest)?,
                within: text(rest)?,
                path: text(rest)?,
                head: text(rest)?,
                body: text(rest)?,
            })
        })?;
        Some(Package { name, lang, units, queries: many(rest, query)?, pairs: many(rest, query)? })
    })?;
    rest.is_empty().then_some(packages)
}

pub(super) fn write(path: &Path, packages: &[Package]) -> anyhow::Result<()> {
    let mut to = Vec::new();
    put(&mut to, packages.len())?;
    for package in packages {
        put_text(&mut to, &package.name)?;
        put(&mut to, package.lang as usize)?;
        put(&mut to, package.units.len())?;
        for unit in &package.units {
            for part in [&unit.name, &unit.within, &unit.path, &unit.head, &unit.body] {
                put_text(&mut to, part)?;
            }
        }
        for queries in [&package.queries, &package.pairs] {
            put(&mut to, queries.len())?;
            for query in queries {
                put_text(&mut to, &query.text)?;
                put(&mut to, query.unit)?;
                to.extend(query.overlap.to_le_bytes());
            }
        }
    }
    // Another run may write it, too: whoever is last has the same.
    let half = path.with_extension(format!("{}.half", std::process::id()));
    std::fs::write(&half, to)?;
    Ok(std::fs::rename(&half, path)?)
}

fn put(to: &mut Vec<u8>, number: usize) -> anyhow::Result<()> {
    to.extend(u32::try_from(number)?.to_le_bytes());
    Ok(())
}

fn put_text(to: &mut Vec<u8>, text: &str) -> anyhow::Result<()> {
    put(to, text.len())?;
    to.extend(text.as_bytes());
    Ok(())
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let bytes = number(rest)?;
    let (text, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

fn query(rest: &mut &[u8]) -> Option<Query> {
    let text = text(rest)?;
    let unit = number(rest)?;
    let (overlap, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(Query { text, unit, overlap: f32::from_le_bytes(*overlap) })
}

fn many<T>(rest: &mut &[u8], each: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    (0..number(rest)?).map(|_| each(rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_read_again_and_what_was_cut_off_is_not() {
        let unit = |name: &str| Unit {
            name: name.to_owned(),
            within: "Pot".to_owned(),
            path: "src/a.rs".to_owned(),
            head: String::new(),
            body: "fn größe() {}".to_owned(),
        };
        let query = Query { text: "How big it is".to_owned(), unit: 1, overlap: 0.25 };
        let packages = vec![
            Package {
                name: "kitchen".to_owned(),
                lang: Lang::Python,
                units: vec![unit("a"), unit("b")],
                queries: vec![query.clone()],
                pairs: vec![query.clone(), query],
            },
            Package {
                name: "empty".to_owned(),
                lang: Lang::Rust,
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
