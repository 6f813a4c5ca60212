//! `xrayctl` accepts every command line in the documents, and the files and tests that they name
//! exist.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::scene::Scene;

/// The documents with command lines.
fn documents() -> Result<Vec<PathBuf>> {
    let root = integration::workspace_dir();
    let mut files = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    for folder in ["docs", "docs/design"] {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Command lines of `xrayctl` in fenced blocks and in spans of code.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    let mut continued = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let line = std::mem::take(&mut continued) + line.trim();
            match line.strip_suffix('\\') {
                Some(begin) => continued = begin.to_owned(),
                None => found.push(line),
            }
        } else {
            // Every other piece between backticks is code. A pipe in a table's cell is escaped.
            found.extend(
                line.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|span| span.replace(r"\|", "|")),
            );
        }
    }
    found.iter().filter_map(|line| command_line(line)).collect()
}

/// The part behind "xrayctl" up to the end of the command in the shell.
fn command_line(line: &str) -> Option<String> {
    let line = line.trim_start_matches("$ ").trim_start_matches("# ");
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let kept = line.strip_prefix("xrayctl ")?;
    let bare = without_quoted(kept);
    let ends = [" | ", " > ", " && ", "; ", " #", "   "];
    let end = ends.iter().filter_map(|end| bare.find(end)).min();
    Some(kept[..end.unwrap_or(kept.len())].trim().to_owned())
}

/// The line with quoted parts blotted out, because they belong to the command.
fn without_quoted(line: &str) -> String {
    let mut quote = None;
    let blotted = line.chars().map(|c| {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, _) => return c.to_string(),
            (Some(_), _) => {}
        }
        // The number of bytes stays the same.
        "_".repeat(c.len_utf8())
    });
    blotted.collect()
}

/// The words that a shell makes of the line, with quotes but without expansions.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            (_, c) => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words.iter().map(|word| filled(word)).collect()
}

/// A value in place of a placeholder of the documents.
fn filled(word: &str) -> String {
    match word {
        "PID" | "<pid>" | "$PID" | "\"$PID\"" | "N" | "P" | "TID" => "12".to_owned(),
        "COMMAND" => "record".to_owned(),
        "TIME" => "5s".to_owned(),
        "SIZE" => "1MiB".to_owned(),
        // Any of the alternatives is right.
        other => other.split('|').next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn the_documents_show_what_is_understood() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut checked = 0;
    for file in documents()? {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for line in command_lines(&text) {
            let mut args = words(&line);
            // `--help` goes before the program's own arguments. All options before it are parsed,
            // and nothing is done.
            let at = args
                .iter()
                .position(|word| word == "--")
                .unwrap_or(args.len());
            if args[0] != "help" {
                args.insert(at, "--help".to_owned());
            }
            let ran = cli.run(&args)?;
            ensure!(
                ran.code == Some(0),
                "{}: `xrayctl {line}` is not understood: {}",
                file.display(),
                ran.err
            );
            checked += 1;
        }
    }
    ensure!(checked > 20, "only {checked} command lines were found");
    Ok(())
}

/// Every Rust file below a folder, with its path in the folder.
fn sources(root: &Path) -> Result<Vec<(String, String)>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            let is_built = name == "target" && folder.join("Cargo.toml").exists();
            if path.is_dir() && !is_built && !name.as_encoded_bytes().starts_with(b".") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                found.push((path.strip_prefix(root)?.display().to_string(), text));
            }
        }
    }
    Ok(found)
}

/// The last column of the pitfalls has tests by their names, by their files, or as `module::*`.
#[test]
fn the_files_and_tests_that_documents_name_exist() -> Result<()> {
    let sources = sources(&integration::workspace_dir())?;
    let is_file = |name: &str| {
        let end = format!("/{name}");
        let mut files = sources.iter();
        files.any(|(file, _)| file == name || file.ends_with(&end))
    };
    let is_test = |name: &str| {
        let begin = format!("fn {name}(");
        let is_tested = |text: &str| text.contains("#[test]") || text.contains("#[tokio::test");
        let mut tests = sources.iter().filter(|(_, text)| is_tested(text));
        tests.any(|(_, text)| text.contains(&begin))
    };
    let (mut missing, mut tests) = (Vec::new(), 0);
    for file in documents()? {
        let text = fs::read_to_string(&file)?;
        let spans = text.split('`').skip(1).step_by(2);
        let files = spans.filter(|span| span.ends_with(".rs") && !span.contains(' '));
        missing.extend(files.filter(|name| !is_file(name)).map(str::to_owned));
        if !file.ends_with("docs/pitfalls.md") {
            continue;
        }
        for row in text.lines().filter(|line| line.starts_with("| ")) {
            let last = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or("");
            for name in last.split('`').skip(1).step_by(2) {
                tests += 1;
                let there = match name.strip_suffix("::*") {
                    Some(module) => is_file(&format!("{module}.rs")),
                    None => name.ends_with(".rs") || is_test(name),
                };
                if !there {
                    missing.push(name.to_owned());
                }
            }
        }
    }
    ensure!(missing.is_empty(), "{missing:#?}");
    ensure!(tests > 60, "{tests}");
    Ok(())
}

#[test]
fn command_lines_are_found() {
    let text = "Try `xrayctl ps` or `cargo xtask demo`.\n```sh\n$ xrayctl record 12 \\\n  --glob 'a b*' # why\nls\n```\n";
    assert_eq!(command_lines(text), ["ps", "record 12 --glob 'a b*'"]);
    assert_eq!(
        words("record PID --glob 'a b*'"),
        ["record", "12", "--glob", "a b*"]
    );
}
