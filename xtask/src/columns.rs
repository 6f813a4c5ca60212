//! Text that is wider than the project's 100 columns: comments and Markdown.
//!
//! Tables, blocks of code in Markdown, and lines with a link may be wider.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use integration::workspace_dir;

const WIDEST: usize = 100;

/// One fault for each line that is too wide, of the files under version control.
pub(crate) fn faults() -> Result<Vec<String>> {
    let root = workspace_dir();
    let listed = Command::new("git")
        .args([
            "ls-files", "-z", "*.rs", "*.md", "*.proto", "*.c", "*.cpp", "*.h",
        ])
        .current_dir(&root)
        .output()
        .context("cannot run git")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    let listed = String::from_utf8(listed.stdout)?;
    let mut faults = Vec::new();
    for name in listed.split_terminator('\0') {
        // A file may have been deleted and still be listed.
        let Ok(text) = fs::read_to_string(root.join(name)) else {
            continue;
        };
        let lines = match Path::new(name).extension() {
            _ if name.contains("/generated/") => continue,
            Some(extension) if extension == "md" => wide_in_markdown(&text),
            _ => wide_comments(&text),
        };
        let fault = |line| format!("{name}:{line}: text over {WIDEST} columns");
        faults.extend(lines.into_iter().map(fault));
    }
    Ok(faults)
}

/// The numbers of the lines of a source file that are comments and too wide.
fn wide_comments(text: &str) -> Vec<usize> {
    wide(text, |line| {
        let text = line.trim_start().strip_prefix("//");
        text.is_some_and(|text| !text.trim_start_matches(['/', '!', ' ']).starts_with('|'))
    })
}

/// The numbers of the lines of a Markdown page that are too wide.
fn wide_in_markdown(text: &str) -> Vec<usize> {
    let mut in_code = false;
    wide(text, |line| {
        let line = line.trim_start();
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence && !line.starts_with('|')
    })
}

fn wide(text: &str, mut counts: impl FnMut(&str) -> bool) -> Vec<usize> {
    let lines = (1..).zip(text.lines());
    let wide = lines
        .filter(|(_, line)| counts(line) && line.chars().count() > WIDEST && !line.contains("://"));
    wide.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_that_are_too_wide_are_found() {
        let long = "x".repeat(WIDEST);
        let link = format!("// https://example.org/{long}");
        let fits = format!("// {}", "é".repeat(WIDEST - 3));
        let row = format!("//! | {long} |");
        let text = format!("let {long} = 1;\n    // {long}\n{link}\n{fits}\n//! {long}\n{row}\n");
        assert_eq!(wide_comments(&text), [2, 5]);
    }

    #[test]
    fn tables_and_code_in_markdown_may_be_wide() {
        let long = "x".repeat(WIDEST + 1);
        let text = format!("{long}\n| {long} |\n```sh\n{long}\n```\n* {long}\n");
        assert_eq!(wide_in_markdown(&text), [1, 6]);
    }
}
