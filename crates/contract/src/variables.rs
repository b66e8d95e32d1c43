//! Replaces `${NAME}` in settings by environment variables.

/// Returns the names of the variables (`${NAME}`) in `text`.
pub fn variable_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("${").skip(1).filter_map(|after| Some(after.split_once('}')?.0))
}

/// Replaces each `${NAME}` in `text` by the value of the environment variable `NAME`, as `variable`
/// returns it.
///
/// # Errors
/// Fails with a sentence that names the first variable that is not set.
pub fn fill_variables(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, more)) = after.split_once('}') else { break };
        filled.push_str(before);
        let value = variable(name);
        filled.push_str(
            &value.ok_or_else(|| format!("the environment variable `{name}` is not set"))?,
        );
        rest = more;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_by_their_values() {
        let set = |name: &str| (name == "A").then(|| "1".to_owned());
        assert_eq!(fill_variables("x${A}y${A}", set), Ok("x1y1".to_owned()));
        assert_eq!(fill_variables("$A ${A", set), Ok("$A ${A".to_owned()));
        assert!(fill_variables("${B}", set).is_err_and(|why| why.contains("`B`")));
    }
}
