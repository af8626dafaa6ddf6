//! `hob check`: everything that can be found wrong before the model is loaded.
//!
//! A *report* holds the faults of the configuration and of what it names: profiles' files, model, template, folders.
//! *Warnings* are what works and is hardly meant. With the engine built in, the model's header is read and the pins are
//! planned, as `hob plan` does.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;

use super::format::Format;
use crate::config::{Config, ConfigError, Fault, read_profiles, read_text};
use crate::sources::read_once;

/// sysexits.h: a configuration that will not get better by another start.
pub const EX_CONFIG: u8 = 78;

/// The first bytes of every GGUF file.
const GGUF_MAGIC: &[u8; 4] = b"GGUF";

#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// With the default in place of each faulty value.
    pub config: Config,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
}

/// Reads `file` and all that it names; changes nothing.
pub fn check(file: &Path) -> Report {
    let report = check_files(file);
    #[cfg(feature = "llama")]
    let report = report.with_engine();
    report
}

/// What can be told without an engine.
fn check_files(file: &Path) -> Report {
    let (config, faults) = Config::examine(file);
    let mut report = Report { config, faults, warnings: Vec::new() };
    if report.faults.iter().any(Fault::is_of_whole_file) {
        return report;
    }
    if let Err(ConfigError::Faults(faults)) = read_profiles(&report.config) {
        report.faults.extend(faults);
    }
    report.model();
    report.chat_template();
    report.folders();
    report.live();
    report
}

impl Report {
    /// What the engine finds in the model, and what does not fit.
    #[cfg(feature = "llama")]
    fn with_engine(mut self) -> Report {
        use super::plan::{PlanError, plan};
        use crate::engine::EngineError;
        use crate::engine::llama::read_facts;

        let is_faulty = |fault: &Fault| {
            fault.is_of_whole_file() || ["model.", "profile"].iter().any(|key| fault.key.starts_with(key))
        };
        let path = self.config.model.path.clone();
        if self.faults.iter().any(|fault| fault.is_of_whole_file() || fault.key == "model.path") {
            return self;
        }
        match read_facts(&path) {
            Ok(facts) => {
                self.adapters_of(&facts.architecture);
                let kv_type = self.config.model.kv_type;
                if let Some(problem) = facts.refusal_of(kv_type) {
                    self.add("model.kv_type", Path::new(kv_type.name()), problem);
                }
            }
            Err(EngineError::Load { reason, .. }) => self.add("model.path", &path, reason),
            Err(_) => {}
        }
        if self.faults.iter().any(is_faulty) {
            return self;
        }
        match plan(&self.config) {
            Ok(plan) => {
                self.faults.extend(plan.misfits.into_iter().map(|misfit| misfit.fault));
                self.warnings.extend(plan.warnings);
            }
            Err(PlanError::Engine(EngineError::Load { reason, .. })) => self.add("model.path", &path, reason),
            Err(PlanError::Engine(EngineError::Adapter { path, reason })) => {
                self.add("model.adapter", Path::new(&path), reason);
            }
            Err(PlanError::Engine(EngineError::Template(reason))) => {
                let template = self.config.model.chat_template.clone().unwrap_or(path);
                self.add("model.chat_template", &template, reason);
            }
            Err(error) => {
                let file = self.config.file.clone();
                self.add("profile", &file, crate::daemon::chain(&error));
            }
        }
        self
    }

    /// Whether each adapter's header says that it is one for such a model; that its weights fit, the load tells.
    #[cfg(feature = "llama")]
    fn adapters_of(&mut self, architecture: &str) {
        use crate::engine::EngineError;
        use crate::engine::llama::read_adapter;

        for (index, adapter) in self.config.model.adapters.clone().into_iter().enumerate() {
            if let Err(EngineError::Adapter { reason, .. }) = read_adapter(&adapter.path, architecture) {
                self.add(&format!("model.adapter[{index}].path"), &adapter.path, reason);
            }
        }
    }

    /// Adds a fault, unless its key has one: what stands in place of a faulty value is not the user's.
    pub fn add(&mut self, key: &str, value: &Path, problem: impl Into<String>) {
        if self.faults.iter().all(|fault| fault.key != key) {
            let value = Some(format!("{:?}", value.to_string_lossy()));
            let file = self.config.file.clone();
            self.faults.push(Fault { file, key: key.to_owned(), value, problem: problem.into() });
        }
    }

    /// 0, or `EX_CONFIG` if there is a fault.
    pub fn exit_code(&self) -> u8 {
        if self.faults.is_empty() { 0 } else { EX_CONFIG }
    }

    /// A line each, or one JSON object.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Json<'a> {
            file: &'a Path,
            ok: bool,
            faults: &'a [Fault],
            warnings: &'a [Fault],
        }
        if format == Format::Json {
            let Report { config, faults, warnings } = self;
            let json = Json { file: &config.file, ok: faults.is_empty(), faults, warnings };
            serde_json::to_writer_pretty(&mut *out, &json).map_err(io::Error::from)?;
            return writeln!(out);
        }
        for fault in &self.faults {
            writeln!(out, "{}", format.red(fault))?;
        }
        for warning in &self.warnings {
            writeln!(out, "{} {warning}", format.bold("warning:"))?;
        }
        if self.faults.is_empty() {
            writeln!(out, "{}: {}", self.config.file.display(), format.green("no faults"))?;
        }
        Ok(())
    }

    fn model(&mut self) {
        let adapters = self.config.model.adapters.iter().map(|adapter| adapter.path.clone()).enumerate();
        let adapters = adapters.map(|(index, path)| (format!("model.adapter[{index}].path"), path));
        let files: Vec<_> =
            [("model.path".to_owned(), self.config.model.path.clone())].into_iter().chain(adapters).collect();
        // One without a path has been told of.
        for (key, path) in files.iter().filter(|(_, path)| !path.as_os_str().is_empty()) {
            self.gguf(key, path);
        }
    }

    fn gguf(&mut self, key: &str, path: &Path) {
        let mut magic = [0; GGUF_MAGIC.len()];
        // Asked before opening: to open a pipe would wait for its writer.
        let read = path.metadata().and_then(|metadata| match metadata.is_file() {
            true => std::fs::File::open(path)?.read_exact(&mut magic),
            false => Ok(()),
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                self.add(key, path, format!("cannot be read: {error}; must be a GGUF file"));
            }
            _ if magic != *GGUF_MAGIC => self.add(key, path, "is not a GGUF file"),
            _ => {}
        }
    }

    fn chat_template(&mut self) {
        let Some(path) = self.config.model.chat_template.clone() else { return };
        if let Err(error) = read_text(&path) {
            self.add("model.chat_template", &path, error.to_string());
        }
    }

    /// Reads each live entry once. One that fails now may be there when the house is asked: that is no fault.
    fn live(&mut self) {
        for (index, profile) in self.config.profiles.iter().enumerate() {
            for entry in &profile.live {
                if let Err(error) = read_once(entry) {
                    self.warnings.push(Fault {
                        file: self.config.file.clone(),
                        key: format!("profile[{index}].live"),
                        value: Some(format!("{:?}", entry.name)),
                        problem: error.to_string(),
                    });
                }
            }
        }
    }

    fn folders(&mut self) {
        let database = self.config.telemetry.path.clone();
        if database.is_dir() {
            self.add("telemetry.path", &database, "is a folder; must be a file, which need not exist yet");
        } else if let Some(folder) = database.parent()
            && let Err(error) = try_to_write(folder)
        {
            self.add("telemetry.path", &database, format!("its folder cannot be written: {error}"));
        }
    }
}

/// Whether files can be made in `folder`, or in the nearest one above it that exists.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let folder = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    // Permission bits alone would not tell: a file system can be read-only, and a service confined.
    let probe = folder.join(format!(".hob-check-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&probe)?;
    std::fs::remove_file(&probe)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A folder with these files and this configuration, which writes to `state/` in it.
    fn house(files: &[(&str, &str)], config: &str) -> (TempDir, Report) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let file = folder.path().join("config.toml");
        std::fs::write(&file, format!("telemetry.path = \"state/hob.sqlite\"\n{config}")).unwrap();
        let report = check_files(&file);
        (folder, report)
    }

    fn printed(folder: &TempDir, report: &Report, format: Format) -> String {
        let mut out = Vec::new();
        report.write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap().replace(&folder.path().display().to_string(), "HOME")
    }

    #[test]
    fn a_house_in_order_has_no_faults_and_is_left_as_it_was() {
        let files = [("model.gguf", "GGUF\x03"), ("house.md", "Be kind."), ("chat.jinja", "{{ x }}")];
        let config = "model.chat_template = \"chat.jinja\"\n[[profile]]\nname = \"house\"\nsystem = \"house.md\"";
        let (folder, report) = house(&files, config);
        assert_eq!(report.exit_code(), 0);
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @"HOME/config.toml: no faults");
        insta::assert_snapshot!(printed(&folder, &report, Format::Json), @r#"
        {
          "file": "HOME/config.toml",
          "ok": true,
          "faults": [],
          "warnings": []
        }
        "#);
        assert_eq!(folder.path().read_dir().unwrap().count(), files.len() + 1);
    }

    #[test]
    fn faults_of_the_file_and_of_what_it_names_stand_together() {
        let files = [("model.gguf", "GG"), ("notes", "")];
        let config = "
            model.chat_template = \"missing.jinja\"
            model.parallel = 0
            [[profile]]
            name = \"house\"
            system = \"missing.md\"
            [[profile]]
            documents = [\"*.md\"]
        ";
        let (folder, report) = house(&files, config);
        assert_eq!(report.exit_code(), 78);
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @r#"
        HOME/config.toml: model.parallel = 0: must be 1 to 64
        HOME/config.toml: profile[1].name: is missing: clients choose a profile by its name
        HOME/config.toml: profile[0].system = "HOME/missing.md": cannot be read: No such file or directory (os error 2)
        HOME/config.toml: profile[1].documents = "*.md": no file has such a name (looked from HOME)
        HOME/config.toml: model.path = "HOME/model.gguf": is not a GGUF file
        HOME/config.toml: model.chat_template = "HOME/missing.jinja": cannot be read: No such file or directory (os error 2)
        "#);
        insta::assert_snapshot!(printed(&folder, &report, Format::Json), @r#"
        {
          "file": "HOME/config.toml",
          "ok": false,
          "faults": [
            {
              "file": "HOME/config.toml",
              "key": "model.parallel",
              "value": "0",
              "problem": "must be 1 to 64"
            },
            {
              "file": "HOME/config.toml",
              "key": "profile[1].name",
              "value": null,
              "problem": "is missing: clients choose a profile by its name"
            },
            {
              "file": "HOME/config.toml",
              "key": "profile[0].system",
              "value": "\"HOME/missing.md\"",
              "problem": "cannot be read: No such file or directory (os error 2)"
            },
            {
              "file": "HOME/config.toml",
              "key": "profile[1].documents",
              "value": "\"*.md\"",
              "problem": "no file has such a name (looked from HOME)"
            },
            {
              "file": "HOME/config.toml",
              "key": "model.path",
              "value": "\"HOME/model.gguf\"",
              "problem": "is not a GGUF file"
            },
            {
              "file": "HOME/config.toml",
              "key": "model.chat_template",
              "value": "\"HOME/missing.jinja\"",
              "problem": "cannot be read: No such file or directory (os error 2)"
            }
          ],
          "warnings": []
        }
        "#);
    }

    #[test]
    fn a_live_entry_that_cannot_be_read_is_warned_of() {
        let config = r#"
            [[profile]]
            name = "house"
            [[profile.live]]
            name = "weather"
            command = ["./weather.sh"]
            [[profile.live]]
            name = "door"
            command = ["/bin/echo", "open"]
        "#;
        let (folder, report) = house(&[("model.gguf", "GGUF")], config);
        assert_eq!(report.exit_code(), 0);
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @r#"
        warning: HOME/config.toml: profile[0].live = "weather": cannot be run: No such file or directory (os error 2)
        HOME/config.toml: no faults
        "#);
    }

    #[test]
    fn a_faulty_value_is_told_once() {
        let (folder, report) = house(&[], "model.path = 3");
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @"HOME/config.toml: model.path = 3: must be a text in quotes");
    }

    #[test]
    fn a_file_that_is_not_understood_names_nothing_to_look_for() {
        let (folder, report) = house(&[], "model.path =");
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @"HOME/config.toml: line 2, column 13: string values must be quoted, expected literal string");
        let report = check_files(&folder.path().join("missing.toml"));
        assert_eq!((report.faults.len(), report.exit_code()), (1, 78));
    }

    #[test]
    fn a_model_must_be_a_gguf_file() {
        for (files, expected) in [
            (&[][..], "cannot be read: No such file"),
            (&[("model.gguf", "")], "is not a GGUF file"),
            (&[("model.gguf", "<!DOCTYPE html>")], "is not a GGUF file"),
        ] {
            let (_folder, report) = house(files, "");
            assert!(report.faults[0].problem.starts_with(expected), "{:?}", report.faults);
        }
        let (_folder, report) = house(&[], "model.path = \".\"");
        assert_eq!(report.faults[0].problem, "is not a GGUF file");
    }

    #[test]
    fn so_must_an_adapter() {
        let config = "
            [[model.adapter]]
            name = \"butler\"
            path = \"butler.gguf\"
            [[model.adapter]]
            name = \"pirate\"
            path = \"missing.gguf\"
            [[model.adapter]]
            name = \"cook\"
            path = \"cook.gguf\"
        ";
        let files = [("model.gguf", "GGUF"), ("butler.gguf", "safetensors"), ("cook.gguf", "GGUF")];
        let (folder, report) = house(&files, config);
        insta::assert_snapshot!(printed(&folder, &report, Format::Plain), @r#"
        HOME/config.toml: model.adapter[0].path = "HOME/butler.gguf": is not a GGUF file
        HOME/config.toml: model.adapter[1].path = "HOME/missing.gguf": cannot be read: No such file or directory (os error 2); must be a GGUF file
        "#);
    }

    #[test]
    fn a_database_must_have_a_folder_to_stand_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(folder.path().join("model.gguf"), "GGUF").unwrap();
        for (path, expected) in [("/proc/hob/hob.sqlite", "its folder cannot be written"), (".", "is a folder")] {
            std::fs::write(&file, format!("telemetry.path = {path:?}")).unwrap();
            let report = check_files(&file);
            assert!(report.faults[0].problem.starts_with(expected), "{:?}", report.faults);
        }
    }

    #[test]
    fn red_is_for_terminals_only() {
        let (folder, report) = house(&[], "");
        assert!(printed(&folder, &report, Format::Coloured).starts_with("\x1b[31m"));
        assert!(!printed(&folder, &report, Format::Plain).contains('\x1b'));
    }
}
