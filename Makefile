# The lab kit: `make help` lists the commands. One rule compiles every file in either precision, and one builds every
# lab's check around whichever answer it is to check.

LABS := lab1 lab3
DIR_lab1 := lab1-loop/loop
DIR_lab3 := lab3-cache/cache
DIR_lab4 := lab4-positions/positions

FROM ?= labs
PACKAGES := openblas cmocka jansson
APT := sudo apt-get install -y gcc make patch pkg-config libopenblas-dev libcmocka-dev libjansson-dev gnuplot-nox

# ---- what is missing is said at once ----

ifeq ($(shell command -v pkg-config),)
$(error pkg-config is missing. Install it and the rest: $(APT))
endif
MISSING := $(foreach package,$(PACKAGES),$(shell pkg-config --exists $(package) || echo lib$(package)-dev))
ifneq ($(strip $(MISSING)),)
$(error $(MISSING): not installed. Install them: $(APT))
endif

MAKEFLAGS += --jobs=$(shell nproc) --no-builtin-rules
CC := gcc
CFLAGS := -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter $(EXTRA)
INCLUDES := -Ireference/model -Itests/kit $(patsubst %,-Ilabs/%,$(notdir $(wildcard labs/lab*)))
LIBS := $(shell pkg-config --libs $(PACKAGES)) -lm
INCLUDES += $(shell pkg-config --cflags $(PACKAGES))

# double is checked with the sanitizers, float without.
SANITIZE := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -no-pie
FLAGS_double := -DREAL=double $(SANITIZE)
FLAGS_float := -DREAL=float

.PHONY: all help labs test compile demo clean mistakes variants $(LABS)
.SECONDARY:
.SILENT:
.DELETE_ON_ERROR:

all: help

help:
	sed -n 's/^#? //p' Makefile

#? make lab1 … lab6        check your answer to a lab; with STEP=3c one step, with FILE=path.c another file,
#?                         with FROM=reference the reference answer, with FORMAT=tap, junit or json for a program
#? make demo               the kit's point in one screen, on a trained model
#? make test               all tests of the kit itself
#? make mistakes           the known mistakes: is each caught at its step, and named?
#? make variants           right answers written in other ways: does each pass?
#? make clean              remove what was built

# ---- compiling: build/double/x.o and build/float/x.o from x.c ----

build/double/%.o: %.c
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(FLAGS_double) $(INCLUDES) -MMD -c $< -o $@

build/float/%.o: %.c
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(FLAGS_float) $(INCLUDES) -MMD -c $< -o $@

-include $(shell find build -name '*.d' 2>/dev/null)

# ---- checks: build/double/ANSWER.lab3 is lab 3's check around the answer ANSWER.c ----

objects = $(patsubst %.c,build/$1/%.o,$2)
MODEL := $(wildcard reference/model/*.c)
KIT := $(addprefix tests/kit/,check.c compare.c diagnose.c formats.c report.c sandbox.c trace.c) tests/labs/subjects.c
ANSWERS := $(wildcard reference/lab*/*.c)

# $1 the lab, $2 the precision. The reference answers of the other labs stand in for what the answer builds on.
define CHECK
build/$2/%.$1: build/$2/%.o $$(call objects,$2,$(MODEL) $(KIT) tests/labs/$1.c $(filter-out reference/$(DIR_$1).c,$(ANSWERS)))
	$$(CC) $$(CFLAGS) $$(FLAGS_$2) $$^ $$(LIBS) -o $$@
endef
$(foreach lab,$(LABS),$(foreach precision,double float,$(eval $(call CHECK,$(lab),$(precision)))))

# The answer under check: FILE, or the lab's file under FROM (labs or reference).
answer = $(or $(FILE:%.c=%),$(FROM)/$(DIR_$1))
.SECONDEXPANSION:
$(LABS): build/double/$$(call answer,$$@).$$@ build/float/$$(call answer,$$@).$$@
	$< --float $(word 2,$^) --answer $(call answer,$@).c --step '$(STEP)' --format '$(FORMAT)'

# ---- known mistakes: a patch makes a wrong answer of the reference answer. Its trace is what a failing step is looked
# up in; its row says whether the check catches it at the step it names, and names it ----

MISTAKES := $(wildcard $(LABS:%=tests/mistakes/%/*.patch))
VARIANTS := $(wildcard $(LABS:%=tests/variants/%/*.c))

define MISTAKE
build/mistakes/$1/%.c: tests/mistakes/$1/%.patch reference/$(DIR_$1).c
	mkdir -p $$(@D)
	patch --silent --output=$$@ reference/$(DIR_$1).c $$<

build/mistakes/$1/%.trace: build/double/build/mistakes/$1/%.$1
	rm -f $$@.new
	$$< --record $$$$(sed -n 's/^step: //p' tests/mistakes/$1/$$*.patch) --trace $$@.new --answer build/mistakes/$1/$$*.c
	mv $$@.new $$@

build/mistakes/$1/%.row: build/double/build/mistakes/$1/%.$1 | $(patsubst tests/%.patch,build/%.trace,$(filter tests/mistakes/$1/%,$(MISTAKES)))
	$$< --mistake tests/mistakes/$1/$$*.patch --answer build/mistakes/$1/$$*.c >$$@.new
	mv $$@.new $$@

build/variants/$1/%.row: build/double/tests/variants/$1/%.$1 build/float/tests/variants/$1/%.$1
	mkdir -p $$(@D)
	if $$< --float $$(word 2,$$^) --answer tests/variants/$1/$$*.c >$$@.report; then verdict=passes; else verdict=FAILS; \
	cat $$@.report; fi; printf '%s\t%s\t%s\n' $1 $$* $$$$verdict >$$@
endef
$(foreach lab,$(LABS),$(eval $(call MISTAKE,$(lab))))

mistakes: $(MISTAKES:tests/%.patch=build/%.row)
	awk -f tests/mistakes/table.awk $^

variants: $(VARIANTS:tests/%.c=build/%.row)
	awk -f tests/variants/table.awk $^

# ---- the kit's own tests ----

TESTS := $(patsubst %.c,build/double/%,$(wildcard tests/*/test_*.c)) \
         $(patsubst %.c,build/float/%,$(wildcard tests/model/test_*.c))

define TEST
build/$1/tests/%: $$(call objects,$1,tests/%.c tests/model/broken.c $(MODEL) $(KIT))
	$$(CC) $$(CFLAGS) $$(FLAGS_$1) $$^ $$(LIBS) -o $$@
endef
$(foreach precision,double float,$(eval $(call TEST,$(precision))))

test: $(TESTS)
	tests/run.sh $(TESTS) $(LABS:%="$(MAKE) --silent % FROM=reference") "$(MAKE) --silent mistakes" "$(MAKE) --silent variants"

SOURCES := $(wildcard labs/*/*.c reference/*/*.c tests/*/*.c tests/variants/*/*.c plots/*.c)

compile: $(foreach precision,double float,$(call objects,$(precision),$(SOURCES)))

# ---- programs: in float, from the reference answers ----

build/demo: $(call objects,float,plots/demo.c $(MODEL) $(ANSWERS))
	$(CC) $(CFLAGS) $^ $(LIBS) -o $@

demo: build/demo
	OPENBLAS_NUM_THREADS=1 $<

clean:
	rm -rf build plots/out
