/* The module: its table of entry points, and how their arguments are read. */

#include "loops.h"

#include <stdarg.h>

PyObject *refuse(PyObject *type, const char *entry, const char *fault) {
    PyErr_Format(type, "%s: %s.", entry, fault);
    return NULL;
}

static int read_integer(const char *entry, Py_ssize_t place, PyObject *given, int64_t least, int bits, int64_t *number) {
    if (!PyLong_Check(given) || PyBool_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s: argument %zd is no integer.", entry, place);
        return 0;
    }
    int overflow = 0;
    *number = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow || *number < least || *number >> bits > 0) {
        PyErr_Format(PyExc_ValueError, "%s: argument %zd, %R, is out of range.", entry, place, given);
        return 0;
    }
    return 1;
}

static int read_array(const char *entry, Py_ssize_t place, PyObject *const *given, array *found) {
    found->data = NULL;
    found->size = -1;
    if (given[0] == Py_None) return 1;
    if (!read_integer(entry, place + 1, given[1], 0, BITS, &found->size)) return 0;
    found->data = PyLong_AsVoidPtr(given[0]);
    if (PyErr_Occurred()) return 0;
    if (!found->data && found->size) {
        PyErr_Format(PyExc_ValueError, "%s: argument %zd has no memory.", entry, place);
        return 0;
    }
    return 1;
}

static int read_geometry(const char *entry, Py_ssize_t place, PyObject *const *given, geometry *found) {
    int64_t *axes[] = {found->in, found->out, found->kernel, found->stride, found->padding, found->dilation};
    if (!read_integer(entry, place, given[0], 0, BITS_OF_AXIS, &found->samples)) return 0;
    for (int i = 0; i < 18; i++)
        if (!read_integer(entry, place + 1 + i, given[1 + i], 0, BITS_OF_AXIS, &axes[i / 3][i % 3])) return 0;
    for (int i = 0; i < 3; i++) /* the planes of input, output and kernel */
        if (plane_of(axes[i]) >> BITS || times(found->samples, plane_of(axes[i])) >> BITS) {
            refuse(PyExc_ValueError, entry, TOO_LARGE);
            return 0;
        }
    return 1;
}

static Py_ssize_t width_of(char letter) { return letter == 'a' ? 2 : letter == 'g' ? 19 : 1; }

int read_arguments(const char *entry, PyObject *const *given, Py_ssize_t count, const char *format, ...) {
    Py_ssize_t expected = 0, at = 0;
    for (const char *letter = format; *letter; letter++) expected += width_of(*letter);
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd.", entry, expected, count);
        return 0;
    }
    int right = 1;
    va_list into;
    va_start(into, format);
    for (const char *letter = format; right && *letter; at += width_of(*letter++)) switch (*letter) {
        case 'a':
            right = read_array(entry, at, given + at, va_arg(into, array *));
            break;
        case 'n':
            right = read_integer(entry, at, given[at], 0, BITS, va_arg(into, int64_t *));
            break;
        case 'z':
            right = read_integer(entry, at, given[at], -(INT64_C(1) << BITS), BITS, va_arg(into, int64_t *));
            break;
        case 'r':
            right = PyFloat_Check(given[at]);
            if (right) *va_arg(into, double *) = PyFloat_AS_DOUBLE(given[at]);
            else PyErr_Format(PyExc_TypeError, "%s: argument %zd is no float.", entry, at);
            break;
        case 'f':
            right = PyBool_Check(given[at]);
            if (right) *va_arg(into, int *) = given[at] == Py_True;
            else PyErr_Format(PyExc_TypeError, "%s: argument %zd is no bool.", entry, at);
            break;
        default:
            right = read_geometry(entry, at, given + at, va_arg(into, geometry *));
        }
    va_end(into);
    return right;
}

#define METHOD(name, kinds) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL},
static PyMethodDef methods[] = {ENTRIES(METHOD){NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled inner loops: call them by `plrp.fast.native.call`.", -1, methods,
    NULL, NULL, NULL, NULL};

/* The formats of all entry points, for signatures.py to compare with its own. */
static PyObject *all_formats(void) {
#define ADDED(name, kinds) \
    if (found && (text = PyUnicode_FromString(kinds))) { \
        if (PyDict_SetItemString(found, #name, text) < 0) Py_CLEAR(found); \
        Py_DECREF(text); \
    }
    PyObject *found = PyDict_New(), *text = NULL;
    ENTRIES(ADDED)
    return found;
}

PyMODINIT_FUNC PyInit__native(void) {
    prepare_threads();
    if (!draw_keys()) return NULL;
    PyObject *module = PyModule_Create(&definition), *formats = all_formats();
    if (!module || !formats || PyModule_AddObjectRef(module, "formats", formats) < 0) Py_CLEAR(module);
    Py_XDECREF(formats);
    return module;
}
