//! `cargo xtask lint`: checks that imports keep to the order of the house and go in no circles, and
//! that no text is too wide (`columns`).
//!
//! It reads the names that each file uses of its own crate: `use` items and paths in code. It
//! follows a name through `pub use` to the file that defines it. It leaves out code for tests or
//! fuzzing alone, since that may look at everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;
use syn::{
    Attribute, Item, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::{columns, shell::say};

/// The folders and files of `xrayd/src` in their order: each uses only those before it.
const ORDER: &[&str] = &[
    "lock",
    "text",
    "toml_file",
    "pid",
    "panics",
    "notify",
    "rate",
    "size",
    "refusal",
    "liveness",
    "socket",
    "tasks",
    "types",
    "sys",
    "shutdown",
    "segments",
    "target",
    "quotas",
    "inject",
    "triggers",
    "store",
    "collect",
    "control",
    "export",
    "process",
    "parse",
    "trigger_text",
    "matching",
    "access",
    "policies",
    "metrics",
    "logs",
    "audit",
    "config",
    "config_file",
    "rpc",
    "state",
    "app",
    "program",
    "main",
    "bin",
];

/// The crates whose imports are read, and the most files of each that may import each other in a
/// circle. A file alone is no circle.
const LONGEST_CIRCLE: [(&str, usize); 4] = [
    ("xray-trace", 1),
    ("cxx-demangle", 2),
    ("xrayd", 1),
    ("xrayctl", 1),
];

/// A module by the names of the modules that it stands in; empty for the root of a crate.
type Module = Vec<String>;

/// The files of one crate, for their imports from each other.
#[derive(Debug, Default)]
struct Crate {
    files: BTreeMap<Module, File>,
}

/// The names in one file.
#[derive(Debug, Default)]
struct File {
    /// Paths of this crate that it names, from the root on.
    named: BTreeSet<Vec<String>>,
    /// Names that it hands on by `use`, and the paths behind them.
    handed_on: BTreeMap<String, Vec<String>>,
    /// Names that it defines.
    defined: BTreeSet<String>,
}

/// An import: the file that has it, the file that it is from, and the name.
type Import = (Module, Module, String);

pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    for (name, longest) in LONGEST_CIRCLE {
        let imports = Crate::read(&workspace_dir().join(name).join("src"))?.imports();
        if name == "xrayd" {
            faults.extend(against_order(&imports)?);
        }
        faults.extend(in_circles(name, &imports, longest));
    }
    faults.extend(columns::faults()?);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    say("imports keep to their order and go in no circles, and no text is too wide")
}

/// The imports of `xrayd` that go against [`ORDER`].
fn against_order(imports: &BTreeSet<Import>) -> Result<Vec<String>> {
    let place = |module: &Module| -> Result<Option<usize>> {
        // The root of the library hands names on, and uses none.
        let Some(top) = module.first() else {
            return Ok(None);
        };
        let place = ORDER.iter().position(|name| name == top);
        let place = place.with_context(|| format!("xrayd/src/{top} has no place in the order"))?;
        Ok(Some(place))
    };
    let mut faults = Vec::new();
    for (user, used, name) in imports {
        let (Some(user_place), Some(used_place)) = (place(user)?, place(used)?) else {
            continue;
        };
        if used_place > user_place {
            faults.push(format!(
                "xrayd: `{}` uses `{name}` of `{}`, which stands below it",
                user.join("::"),
                used.join("::")
            ));
        }
    }
    Ok(faults)
}

/// The circles of a crate's imports that have more files than `longest`.
fn in_circles(name: &str, imports: &BTreeSet<Import>, longest: usize) -> Vec<String> {
    let too_long = circles(imports)
        .into_iter()
        .filter(|circle| circle.len() > longest);
    let fault = |circle: BTreeSet<Module>| {
        let files: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
        let files = files.join(", ");
        format!("{name}: these files import each other in a circle: {files}")
    };
    too_long.map(fault).collect()
}

// === impl Crate ===

impl Crate {
    fn read(root: &Path) -> Result<Self> {
        let mut all = Self::default();
        all.read_folder(root, &Module::new())?;
        Ok(all)
    }

    fn read_folder(&mut self, folder: &Path, module: &Module) -> Result<()> {
        let read = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(read)? {
            let path = entry.with_context(read)?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                self.read_folder(&path, &child(module, &name))?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = match &*name {
                    "mod" | "lib" => module.clone(),
                    name => child(module, name),
                };
                self.files
                    .insert(module.clone(), File::read(&path, &module)?);
            }
        }
        Ok(())
    }

    /// Each file with its imports from other files. A name that a module merely hands on is not its
    /// own.
    fn imports(&self) -> BTreeSet<Import> {
        let mut imports = BTreeSet::new();
        for (module, file) in &self.files {
            for path in &file.named {
                if let Some((used, name)) = self.origin(path.clone())
                    && used != *module
                {
                    imports.insert((module.clone(), used, name));
                }
            }
        }
        imports
    }

    /// The file that defines the target of a path, and its name there. `None` if the target is no
    /// item of this crate.
    fn origin(&self, mut path: Vec<String>) -> Option<(Module, String)> {
        // A name is handed on through a few modules at most.
        for _ in 0..16 {
            let known = (0..=path.len()).rev();
            let length = { known }.find(|&length| self.files.contains_key(&path[..length]))?;
            let (module, rest) = path.split_at(length);
            let file = self.files.get(module)?;
            let Some(name) = rest.first() else {
                return Some((module.to_vec(), "self".to_owned()));
            };
            match file.handed_on.get(name) {
                Some(behind) if !file.defined.contains(name) && *behind != path => {
                    path = behind.iter().chain(&rest[1..]).cloned().collect();
                }
                _ => return Some((module.to_vec(), name.clone())),
            }
        }
        None
    }
}

// === impl File ===

impl File {
    fn read(path: &PathBuf, module: &Module) -> Result<Self> {
        let source = fs::read_to_string(path);
        let source = source.with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = syn::parse_file(&source);
        let parsed = parsed.with_context(|| format!("cannot parse {}", path.display()))?;
        let mut reader = Reader {
            module,
            file: Self::default(),
        };
        reader.visit_file(&parsed);
        Ok(reader.file)
    }
}

/// Gathers the names in a file.
#[derive(Debug)]
struct Reader<'a> {
    module: &'a Module,
    file: File,
}

// === impl Reader ===

impl Reader<'_> {
    /// A path from the root of the crate; `None` if it is of another crate, or of this file.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let up = path.iter().take_while(|part| *part == "super").count();
        let base = match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some([self.module.as_slice(), &path[1..]].concat()),
            "super" => self.module.get(..self.module.len().checked_sub(up)?)?,
            _ => return None,
        };
        Some([base, &path[up..]].concat())
    }

    fn take_use(&mut self, tree: &UseTree, before: &[String], visibility: &Visibility) {
        match tree {
            UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                self.take_use(&path.tree, &before, visibility);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_use(tree, before, visibility);
                }
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.take_name(before, &name, &name, visibility);
            }
            UseTree::Rename(rename) => {
                let (name, alias) = (rename.ident.to_string(), rename.rename.to_string());
                self.take_name(before, &name, &alias, visibility);
            }
            UseTree::Glob(_) => {
                self.file.named.extend(self.absolute(before));
            }
        }
    }

    fn take_name(&mut self, before: &[String], name: &str, alias: &str, visibility: &Visibility) {
        let path = match name {
            "self" => before.to_vec(),
            name => [before, &[name.to_owned()]].concat(),
        };
        // Without a keyword in front, it is a module of this file's own, or another crate.
        let path = self
            .absolute(&path)
            .unwrap_or_else(|| [self.module.as_slice(), &path].concat());
        if matches!(visibility, Visibility::Inherited) {
            self.file.named.insert(path.clone());
        }
        self.file.handed_on.insert(alias.to_owned(), path);
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Mod(item) => (&item.attrs, None),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Use(item) => (&item.attrs, None),
            _ => return,
        };
        if attributes.iter().any(is_left_out) {
            return;
        }
        self.file.defined.extend(name.map(ToString::to_string));
        if let Item::Use(item) = item {
            self.take_use(&item.tree, &[], &item.vis);
        }
        visit::visit_item(self, item);
    }

    /// `pub(super)` names a module, and takes nothing from it.
    fn visit_visibility(&mut self, _: &Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        self.file.named.extend(self.absolute(&parts));
        visit::visit_path(self, path);
    }
}

/// True if an item is compiled for tests, or for fuzzing, alone.
fn is_left_out(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let condition = list.tokens.to_string();
    list.path.is_ident("cfg") && ["test", "fuzzing"].contains(&condition.as_str())
}

fn child(module: &Module, name: &str) -> Module {
    [module.as_slice(), &[name.to_owned()]].concat()
}

/// The groups of files that import each other in circles: each file of a group reaches all others.
fn circles(imports: &BTreeSet<Import>) -> BTreeSet<BTreeSet<Module>> {
    let mut used_by = BTreeMap::<&Module, BTreeSet<&Module>>::new();
    for (user, used, _) in imports {
        used_by.entry(user).or_default().insert(used);
    }
    let reached = |from: &Module| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = left.pop() {
            for used in used_by.get(&module).into_iter().flatten() {
                if seen.insert((*used).clone()) {
                    left.push((*used).clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<Module, BTreeSet<Module>> = used_by
        .keys()
        .map(|module| ((*module).clone(), reached(module)))
        .collect();
    all.iter()
        .filter(|(module, reached)| reached.contains(*module))
        .map(|(module, reached)| {
            let back = |other: &&Module| all.get(*other).is_some_and(|its| its.contains(module));
            reached.iter().filter(back).cloned().collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `module` with this source.
    fn file(module: &[&str], source: &str) -> (Module, File) {
        let module: Module = module.iter().map(ToString::to_string).collect();
        let mut reader = Reader {
            module: &module,
            file: File::default(),
        };
        reader.visit_file(&syn::parse_str(source).unwrap());
        let file = reader.file;
        (module, file)
    }

    fn imports(files: &[(&[&str], &str)]) -> BTreeSet<(String, String, String)> {
        let files = files.iter().map(|(module, source)| file(module, source));
        let all = Crate {
            files: files.collect(),
        };
        let imports = all.imports().into_iter();
        let shown = |(user, used, name): Import| (user.join("::"), used.join("::"), name);
        imports.map(shown).collect()
    }

    #[test]
    fn names_are_followed_to_the_file_that_defines_them() {
        let found = imports(&[
            (&[], "mod a; mod b; pub use a::Handed;"),
            (&["a"], "mod inner; pub use inner::{Deep as Handed, Other};"),
            (&["a", "inner"], "pub struct Deep; pub enum Other {}"),
            (
                &["b"],
                "use crate::a::Other; fn f() { crate::Handed; super::a::nothing(); }
                 #[cfg(test)] mod tests { use crate::c::Left; }",
            ),
        ]);
        let import = |used: &str, name: &str| ("b".to_owned(), used.to_owned(), name.to_owned());
        assert_eq!(
            found,
            BTreeSet::from([
                import("a", "nothing"),
                import("a::inner", "Deep"),
                import("a::inner", "Other"),
            ])
        );
    }

    #[test]
    fn an_import_against_the_order_is_a_fault() {
        let import =
            |user: &str, used: &str| (vec![user.to_owned()], vec![used.to_owned()], "X".to_owned());
        let right = BTreeSet::from([import("rpc", "types"), import("store", "target")]);
        assert!(against_order(&right).unwrap().is_empty());
        let wrong = BTreeSet::from([import("store", "process")]);
        assert_eq!(against_order(&wrong).unwrap().len(), 1);
        assert!(against_order(&BTreeSet::from([import("unknown", "pid")])).is_err());
    }

    #[test]
    fn circles_are_found() {
        let import =
            |user: &str, used: &str| (vec![user.to_owned()], vec![used.to_owned()], "X".to_owned());
        let imports = BTreeSet::from([
            import("a", "b"),
            import("b", "c"),
            import("c", "a"),
            import("d", "a"),
        ]);
        let names =
            |circle: &BTreeSet<Module>| circle.iter().flatten().cloned().collect::<String>();
        let found: Vec<String> = circles(&imports).iter().map(names).collect();
        assert_eq!(found, ["abc"]);
    }
}
