//! Compiles fixtures. The recipes are in `recipe.rs`.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cache::once;
use crate::fixture::Fixture;
use crate::recipe::Recipe;
use crate::tool::output_of;

/// The program of `fixture`, compiled if it has not been yet.
///
/// It lies in a directory of its own, `target/fixtures/<name>-<hash of sources and commands>/`,
/// with the libraries that it needs.
///
/// # Errors
/// A compiler is missing (the error names the package) or reports an error.
pub fn build(fixture: Fixture) -> Result<PathBuf> {
    let recipe = fixture.recipe();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let key = key(&recipe, &sources)?;
    let finished = once(fixture.name(), key, |work| compile(&recipe, &sources, work))?;
    Ok(finished.join(fixture.name()))
}

fn compile(recipe: &Recipe, sources: &Path, work: &Path) -> Result<()> {
    if let Some((name, text)) = &recipe.generated {
        fs::write(work.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    for (tool, arguments) in &recipe.steps {
        let mut command = tool.command()?;
        command.current_dir(work);
        // For unstable options of a stable rustc. No other tool reads it.
        command.env("RUSTC_BOOTSTRAP", "1");
        for argument in arguments {
            command.arg(argument.replace("{src}", &sources.to_string_lossy()));
        }
        output_of(&mut command)?;
    }
    Ok(())
}

fn key(recipe: &Recipe, sources: &Path) -> Result<u64> {
    let Recipe {
        sources: names,
        generated,
        steps,
    } = recipe;
    let mut hasher = DefaultHasher::new();
    for name in *names {
        let path = sources.join(name);
        name.hash(&mut hasher);
        fs::read(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .hash(&mut hasher);
    }
    generated.hash(&mut hasher);
    for (tool, arguments) in steps {
        tool.path()?.hash(&mut hasher);
        arguments.hash(&mut hasher);
    }
    Ok(hasher.finish())
}
