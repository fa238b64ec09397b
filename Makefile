# The lab kit: `make help` lists the commands. One rule compiles every file in either precision, one makes a shared object
# of every answer, and one links every lab's check, which runs any answer to that lab.

LABS := lab1 lab2 lab3 lab4 lab5 lab6
DIR_lab1 := lab1-loop/loop
DIR_lab2 := lab2-sampling/sampling
DIR_lab3 := lab3-cache/cache
DIR_lab4 := lab4-positions/positions
DIR_lab5 := lab5-beam/beam
DIR_lab6 := lab6-cost/cost

FROM ?= labs
CC := gcc
PACKAGES := openblas cmocka jansson

# ---- what is missing is said at once ----

MISSING := $(strip $(foreach tool,pkg-config $(CC) patch,$(if $(shell command -v $(tool)),,$(tool))))
MISSING += $(if $(MISSING),,$(foreach package,$(PACKAGES),$(shell pkg-config --exists $(package) || echo lib$(package)-dev)))
ifneq ($(strip $(MISSING)),)
$(error not installed: $(strip $(MISSING)). This installs all that is needed: \
    sudo apt-get install -y gcc make patch pkg-config libopenblas-dev libcmocka-dev libjansson-dev gnuplot-nox)
endif

# ---- so is a FILE or FROM that can't be ----

ifneq ($(FILE),)
ifneq ($(words $(FILE)) $(wildcard $(filter %.c,$(FILE))),1 $(FILE))
$(error FILE=$(FILE): there's no such C file (its name must end in .c and have no spaces))
endif
ifneq ($(findstring :,$(FILE))$(findstring ;,$(FILE))$(filter labs,$(MAKECMDGOALS)),)
$(error FILE=$(FILE): it's for one lab at a time, and its name can't have a : or ; in it)
endif
endif
ifeq ($(filter labs reference,$(FROM)),)
$(error FROM=$(FROM): the answers are in labs or in reference)
endif

MAKEFLAGS += --jobs=$(shell nproc) --no-builtin-rules
CFLAGS := -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -fno-pie $(EXTRA)
INCLUDES := -Ireference/model -Itests/kit $(patsubst %,-Ilabs/%,$(notdir $(wildcard labs/lab*)))
INCLUDES += $(shell pkg-config --cflags $(PACKAGES))
LIBS := $(shell pkg-config --libs $(PACKAGES)) -lm -no-pie

# One thread, so that results don't depend on the machine's size.
export OPENBLAS_NUM_THREADS := 1

# double is checked with the sanitizers, float without.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -fno-optimize-sibling-calls
FLAGS_double := -DREAL=double $(SANITIZE)
FLAGS_float := -DREAL=float

.PHONY: all help labs answers test compile demo offset speed fuzz clean mistakes known variants $(LABS)
.SECONDARY:
.SILENT:
.DELETE_ON_ERROR:

all: help

help:
	sed -n 's/^#? //p' Makefile

#? make lab1 … lab6        check your answer to a lab; with STEP=3c one step, with FILE=path.c another file,
#?                         with FROM=reference the reference answer, with FORMAT=tap, junit or json for a program
#? make labs               check all six, and print the points
#? make answers            your numbers in labs/answers.txt: right, wrong or empty
#? make demo               the kit's point in one screen, on a trained model
#? make offset             what a forgotten position offset costs, on data/measure.txt or TEXT=file
#? make speed              how fast this machine decodes: what lab 6 predicts, and the clock
#? make test               all tests of the kit itself
#? make mistakes           the known mistakes: is each caught at its step, and named? With ALL=1 the rare ones too
#? make known              after adding or changing a mistake: write down what a failing step is looked up in
#? make variants           right answers written in other ways: does each pass?
#? make fuzz               the model loader on broken files, for SECONDS=600 (needs clang)
#? make clean              remove what was built
#? Programs that use your files (answers, offset, speed) take the reference's with FROM=reference.

# ---- compiling: build/double/x.o and build/float/x.o from x.c; for an answer, a shared object in a folder of its own.
# Its calls to its own functions stay its own, even where the kit has one of the same name ----

define COMPILE
build/$1/%.o: %.c
	mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(FLAGS_$1) $$(INCLUDES) -MMD -c $$< -o $$@

build/$1/%/answer.so: %.c
	mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(FLAGS_$1) $$(QUICK) $$(INCLUDES) -MMD -fPIC -shared -Wl,-soname,answer.so,-Bsymbolic-functions $$< -o $$@
endef
$(foreach precision,double float,$(eval $(call COMPILE,$(precision))))

-include $(shell find build -name '*.d' 2>/dev/null)

# ---- checks: a lab's check is linked once, and runs any answer ----

objects = $(patsubst %.c,build/$1/%.o,$2)
MODEL := $(wildcard reference/model/*.c)
KIT := $(addprefix tests/kit/,check.c compare.c diagnose.c fingerprint.c formats.c mistakes.c report.c sandbox.c trace.c) tests/labs/subjects.c
ANSWERS := $(wildcard reference/lab*/*.c)

# $1 the lab, $2 the precision. The reference answers of the other labs stand in for what the answer builds on; its own
# is what the check finds where no other answer is named. What is right doesn't depend on the answer: it's kept.
define CHECK
build/$2/$1: $$(call objects,$2,$(MODEL) $(KIT) tests/labs/$1.c $(filter-out reference/$(DIR_$1).c,$(ANSWERS))) \
             | build/$2/reference/$(DIR_$1)/answer.so
	$$(CC) $$(CFLAGS) $$(FLAGS_$2) -rdynamic -Wl,-z,lazy,-rpath,'$$$$ORIGIN/reference/$(DIR_$1)' $$^ $$| $$(LIBS) -o $$@

build/$2/$1.expected: build/$2/$1 $(wildcard data/models/*)
	rm -f $$@.new
	$$< --expect all --trace $$@.new
	mv $$@.new $$@
endef
$(foreach lab,$(LABS),$(foreach precision,double float,$(eval $(call CHECK,$(lab),$(precision)))))

# What a check needs beside the answer, and how it's called.
checked_by = build/double/$1 build/float/$1 build/double/$1.expected build/float/$1.expected
check = build/double/$1 --float build/float/$1 --expected build/double/$1.expected --float-expected build/float/$1.expected

# The answer under check: FILE, or the lab's file under FROM (labs or reference).
answer = $(or $(if $(findstring ..,$(FILE)),$(abspath $(FILE:%.c=%)),$(FILE:%.c=%)),$(FROM)/$(DIR_$1))
.SECONDEXPANSION:
$(LABS): $$(call checked_by,$$@) build/double/$$(call answer,$$@)/answer.so build/float/$$(call answer,$$@)/answer.so
	$(call check,$@) --answer $(call answer,$@).c --step '$(STEP)' --format '$(FORMAT)'

# ---- the score sheet ----

SHEET := $(LABS:%=build/%.sheet)

.PHONY: $(SHEET)
$(SHEET): build/%.sheet: $$(call checked_by,$$*) build/double/$$(call answer,$$*)/answer.so build/float/$$(call answer,$$*)/answer.so
	$(call check,$*) --answer $(call answer,$*).c --format rows >$@ || [ $$? -eq 1 ]

labs: $(SHEET)
	awk -f tests/labs/sheet.awk $^

# ---- known mistakes: a patch makes a wrong answer of the reference answer. A row says whether the check catches it at the
# step it names, and names it. LAB.known has what a failing step is looked up in: each mistake's trace in short ----

MISTAKES := $(wildcard $(LABS:%=tests/mistakes/%/*.patch))
VARIANTS := $(wildcard $(LABS:%=tests/variants/%/*.c))

build/double/%/answer.so: QUICK := -O1
build/double/build/mistakes/%: QUICK := -O0 -g1

# Those that make mistakes runs: not the rare ones, which would take too long, but with ALL=1.
CHECKED := $(if $(ALL),$(MISTAKES),$(filter-out $(shell grep -ls '^rare: yes' $(MISTAKES)),$(MISTAKES)))
of_lab = $(filter tests/mistakes/$1/%,$2)
compiled = $(patsubst tests/%.patch,build/double/build/%/answer.so,$(call of_lab,$1,$2))

define MISTAKES_OF_LAB
build/mistakes/$1/%.c: tests/mistakes/$1/%.patch reference/$(DIR_$1).c
	mkdir -p $$(@D)
	patch --silent --output=$$@ reference/$(DIR_$1).c $$<

build/mistakes/$1$(if $(ALL),-all).rows: $(call compiled,$1,$(CHECKED)) build/double/$1 build/double/$1.expected tests/mistakes/$1.known
	build/double/$1 --expected build/double/$1.expected --check-mistakes $(call of_lab,$1,$(CHECKED)) >$$@.new
	mv $$@.new $$@

build/mistakes/$1.known: $(call compiled,$1,$(MISTAKES)) build/double/$1
	build/double/$1 --print-known $(call of_lab,$1,$(MISTAKES)) >$$@.new
	mv $$@.new $$@

build/variants/$1/%.row: build/double/tests/variants/$1/%/answer.so build/float/tests/variants/$1/%/answer.so $$(call checked_by,$1)
	mkdir -p $$(@D)
	if $$(call check,$1) --answer tests/variants/$1/$$*.c >$$@.report; then verdict=passes; else verdict=FAILS; \
	cat $$@.report; fi; printf '%s\t%s\t%s\n' $1 $$* $$$$verdict >$$@
endef
$(foreach lab,$(LABS),$(eval $(call MISTAKES_OF_LAB,$(lab))))

mistakes: $(LABS:%=build/mistakes/%$(if $(ALL),-all).rows)
	awk -f tests/mistakes/table.awk $^

known: $(LABS:%=build/mistakes/%.known)
	cp $^ tests/mistakes

variants: $(VARIANTS:tests/%.c=build/%.row)
	awk -f tests/variants/table.awk $^

# ---- the kit's own tests ----

TESTS := $(patsubst %.c,build/double/%,$(wildcard tests/*/test_*.c)) \
         $(patsubst %.c,build/float/%,$(wildcard tests/model/test_*.c))

define TEST
build/$1/tests/%: $$(call objects,$1,tests/%.c tests/model/broken.c tests/kit/capture.c $(MODEL) $(KIT))
	$$(CC) $$(CFLAGS) $$(FLAGS_$1) $$^ $$(LIBS) -o $$@
endef
$(foreach precision,double float,$(eval $(call TEST,$(precision))))

# What the tests run: a lab of hostile answers, and each lab's skeleton and reference answer.
TESTED := $(foreach precision,double float,build/$(precision)/tests/kit/hostile $(foreach lab,$(LABS), \
    build/$(precision)/$(lab) build/$(precision)/labs/$(DIR_$(lab))/answer.so)) build/answers-reference

test: $(TESTS) $(TESTED)
	tests/run.sh $(TESTS) $(LABS:%="$(MAKE) --silent % FROM=reference") "$(MAKE) --silent mistakes" "$(MAKE) --silent variants"

SOURCES := $(wildcard labs/*/*.c reference/*/*.c tests/*/*.c tests/variants/*/*.c plots/*.c)

compile: $(call objects,double,$(filter-out %/fuzz_load.c,$(SOURCES))) \
         $(call objects,float,$(filter-out %/fuzz_load.c tests/kit/test_%.c,$(SOURCES)))

build/fuzz: tests/model/fuzz_load.c tests/model/broken.c $(MODEL)
	mkdir -p $(@D)
	clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined $(INCLUDES) $^ $(LIBS) -o $@

fuzz: build/fuzz
	mkdir -p build/corpus
	$< build/corpus tests/model/seeds -dict=tests/model/fuzz_load.dict -malloc_limit_mb=64 -rss_limit_mb=1024 \
	    -max_total_time=$(or $(SECONDS),600)

# ---- programs: in float, around the reference answers, or those of some labs under FROM ----

# $1 labs or reference, $2 the labs whose answers come from there.
around = $(foreach lab,$2,$1/$(DIR_$(lab)).c) $(filter-out $(foreach lab,$2,reference/$(DIR_$(lab)).c),$(ANSWERS))

define PROGRAMS
build/answers-$1: $$(call objects,double,tests/answers/answers.c $(MODEL) $$(call around,$1,lab1 lab3))
	$$(CC) $$(CFLAGS) $$(FLAGS_double) $$^ $$(LIBS) -o $$@

build/speed-$1: $$(call objects,float,plots/speed.c $(MODEL) $$(call around,$1,lab6))
	$$(CC) $$(CFLAGS) $$^ $$(LIBS) -o $$@

# Lab 4's functions are wrapped, so that the program can call them with a wrong start (see plots/offset.c).
build/offset-$1: $$(call objects,float,plots/offset.c $(MODEL) $$(call around,$1,lab4))
	$$(CC) $$(CFLAGS) -Wl,--wrap=add_positions,--wrap=turn_heads $$^ $$(LIBS) -o $$@
endef
$(foreach from,labs reference,$(eval $(call PROGRAMS,$(from))))

build/demo: $(call objects,float,plots/demo.c $(MODEL) $(ANSWERS))
	$(CC) $(CFLAGS) $^ $(LIBS) -o $@

demo: build/demo
	$<

speed: build/speed-$(FROM)
	$<

offset: build/offset-$(FROM)
	$< $(or $(TEXT),data/measure.txt)

# Where the labs don't compile, the numbers are judged without counting.
answers: build/answers-reference
	if $(MAKE) --silent build/answers-$(FROM) 2>/dev/null; then build/answers-$(FROM) labs/answers.txt $(FROM); \
	else echo "(lab 1 or 3 doesn't compile, so nothing is counted)"; $< labs/answers.txt; fi

clean:
	rm -rf build plots/out
